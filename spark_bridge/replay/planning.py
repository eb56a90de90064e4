"""SHELL (sockets, files): the manifest of a replay: made from options now, or found where an earlier run has left it.

    isolation = isolation_of(out)             what an earlier run of this place reads, None if there was none
    manifest = make_manifest(options)         fix the ranges once
    keep_manifest(out, manifest)              before any task
"""

from collections.abc import Mapping
from pathlib import Path

from broker.version import VERSION
from spark_bridge.output.storage import LocalStorage, Storage
from spark_bridge.reading.cluster import Cluster
from spark_bridge.replay.publication import MOVE_AWAY, save_manifest, stored_manifest
from spark_bridge.selection import manifest as manifests
from spark_bridge.selection.manifest import Manifest
from spark_bridge.selection.options import COMMITTED, UNCOMMITTED, parse
from spark_bridge.selection.pinned import select
from spark_bridge.selection.record_file import read_record

DEFAULT_ISOLATION = COMMITTED
"""As of a load: rows of aborted transactions are in no result unless the user asks for them."""
ISOLATIONS = (COMMITTED, UNCOMMITTED)
_BESIDE = ".manifest.json"


def make_manifest(options: Mapping[str, str]) -> Manifest:
    """Return a manifest of the ranges that the Data Source's `options` select now.

    Raise OptionError, SelectionError or network.ClusterError.
    """
    parsed = parse(options)
    with Cluster.connect(parsed.servers, parsed.driver_settings) as cluster:
        return select(parsed, cluster, VERSION)


def isolation_of(out: Storage) -> str | None:
    """Return the isolation of the replay in `out`, also of one that was killed; None for a new place.

    A repeated command must give the same bytes, whatever the default is now. Raise DamagedRecord, or OSError.
    """
    manifest = stored_manifest(out) or _beside(out)
    if manifest is None:
        return None
    return COMMITTED if manifest.read_committed else UNCOMMITTED


def keep_manifest(out: Storage, manifest: Manifest) -> None:
    """Save the manifest beside a local directory, before anything else; a store has it inside.

    Raise FileExistsError if another manifest is there.
    """
    if isinstance(out, LocalStorage):
        save_manifest(manifest, _path_beside(out))


def _beside(out: Storage) -> Manifest | None:
    if not isinstance(out, LocalStorage) or not _path_beside(out).is_file():
        return None
    path = _path_beside(out)
    return read_record(LocalStorage(path.parent), path.name, manifests.load, MOVE_AWAY)


def _path_beside(out: LocalStorage) -> Path:
    return out.root.with_name(out.root.name + _BESIDE)
