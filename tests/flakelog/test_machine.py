"""flakelog.machine: defaults of limits fit the machine, and every other source goes before them."""

import pytest

from flakelog.machine import boot_id, fitting_settings, machine_defaults, memory_bytes
from flakelog.settings import Given, collect

GIB = 1 << 30


@pytest.mark.parametrize(
    "memory, files, log, ids, request_bytes",
    [
        (16 * GIB, 1 << 20, 262_144, 10_000, 2 * GIB),
        (16 * GIB, 4_096, 2_048, 512, 2 * GIB),
        (GIB, 1 << 20, 16_384, 10_000, GIB // 8),
        (64 << 20, 64, 32, 16, 16 << 20),
        (64 << 20, 8, 16, 16, 16 << 20),
        (None, 1_024, 512, 128, None),
    ],
)
def test_limits_fit_the_memory_and_the_descriptors(memory, files, log, ids, request_bytes):
    settings = fitting_settings(memory, files)
    assert settings.pop("queued.max.request.bytes", None) == (request_bytes and str(request_bytes))
    assert settings == {
        "max.connections": str(log),
        "flakelog.ids.max.connections": str(ids),
        "flakelog.http.max.connections": str(ids),
    }
    if files >= 128:
        assert log + 2 * ids <= files * 3 // 4, "the files of the log need the rest"


def test_the_limit_of_a_container_counts_if_it_is_smaller(tmp_path):
    limit, none = tmp_path / "memory.max", tmp_path / "none"
    none.write_text("max\n")
    limit.write_text("1048576\n")
    assert memory_bytes([none, limit, tmp_path / "missing"]) == 1 << 20
    assert memory_bytes([none]) == memory_bytes()


def test_every_other_source_goes_before_them(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("queued.max.request.bytes=7\n")
    mode = Given("flakelog.http.max.connections", "5", "--dev")
    collected = collect(file, ["max.connections=6"], mode=(*machine_defaults(4_096), mode))
    assert collected.texts["queued.max.request.bytes"] == "7"
    assert collected.texts["max.connections"] == "6"
    assert collected.texts["flakelog.http.max.connections"] == "5"
    assert collected.texts["flakelog.ids.max.connections"] == "512"
    assert collected.origins["flakelog.ids.max.connections"] == "this machine"


def test_a_boot_of_the_kernel_has_an_id_where_the_system_tells(tmp_path):
    assert boot_id() == boot_id()
    (tmp_path / "boot_id").write_text("1f6d\n")
    assert boot_id(tmp_path / "boot_id") == "1f6d"
    assert boot_id(tmp_path / "none") == ""
