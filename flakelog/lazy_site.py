"""A site that is imported when its first request comes: klein and twisted.web take longer to load than all the rest."""

from typing import TYPE_CHECKING, Any

from twisted.internet.protocol import Factory

if TYPE_CHECKING:
    from flakelog.app import Server


class LazySite(Factory):
    """A protocol factory that becomes the real site with its first connection."""

    noisy = False

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._site: Any = None

    def buildProtocol(self, addr: Any) -> Any:
        if self._site is None:
            from flakelog.site import make_site

            self._site = make_site(self._server)
            self._site.startFactory()
        return self._site.buildProtocol(addr)
