"""Execution of one request: decode its bytes by a template or in full, call its handler, send the response."""

import sys
from collections.abc import Mapping
from types import GeneratorType
from typing import Any

from broker.channel.connection import Connection
from broker.channel.request_channel import RequestChannel
from broker.engine.api_table import INTER_BROKER, PRODUCE, SERVED_UNINFORMED, Api
from broker.engine.authenticator import Authenticator
from broker.engine.authorization import delegate, handle_authorized
from broker.engine.throttle import Throttle
from broker.metadata.image import IMAGE_CAME
from broker.produce.batch_opening import BatchOpening
from broker.produce.outcome import AwaitsVerification, LogReserved, Postponed, WithoutIds
from broker.produce.produce_commit import ProduceCommit
from broker.produce.turn import StagedProduce
from broker.produce.validate import PARTITIONS_AT_ONCE
from broker.services.context import BrokerServices, RequestContext
from broker.services.delegation import Delegation
from broker.stamping.id_stamper import Backpressure
from broker.steps import Steps, at_once, rest_of
from broker.waiting.purgatory import Delayed
from broker.wire import fetch, list_offsets
from broker.wire.codec import API_VERSIONS
from broker.wire.errors import ApiError, WireError
from broker.wire.fetch_template import FetchTemplates
from broker.wire.frame import RequestHeader, read_request_header
from broker.wire.list_offsets_template import ListOffsetsTemplates
from broker.wire.primitives import Buffer
from broker.wire.produce_template import ProduceTemplates
from broker.wire.request_limits import RequestLimits
from broker.wire.templates import Opened, Template, Templates, TemplateStore

BYTES_AT_ONCE = 8 << 10
"""A request of a cold API that is larger is decoded in slices; nearly all are smaller."""
READ_BYTES_AT_ONCE = 16 << 10
"""A Fetch or ListOffsets that is larger is decoded in a slice of its own; it mostly names over 500 partitions."""
IMAGE_WAIT_MS = 30_000
"""A request that waits for the image of the cluster is looked at again after this time."""
_NO_TAGS: Mapping[int, Buffer] = {}
_record = tuple.__new__  # as RequestContext(...), at half its price


class RequestHandler:
    """Executes requests of the APIs in a table; an error of a request closes its connection."""

    def __init__(
        self,
        services: BrokerServices,
        apis: Mapping[int, Api],
        channel: RequestChannel,
        throttle: Throttle,
        produce_commit: ProduceCommit,
        opening: BatchOpening,
        authenticator: Authenticator,
    ) -> None:
        self._services = services
        self._apis = apis
        self._channel = channel
        self._clock = channel.clock
        self._throttle = throttle
        self._uninformed = services.member
        """The part in a cluster that does not know the cluster yet; None once it does."""
        self._commit = produce_commit
        self._opening = opening
        self._authenticator = authenticator
        config = services.config
        self._limits = RequestLimits(
            config.max_cold_request_bytes, config.max_request_items, config.max_request_partitions
        )
        self._broker_limits = RequestLimits(config.socket_request_max_bytes, sys.maxsize, sys.maxsize)
        """A controller's order names all partitions of a cluster, however many there are."""
        store = TemplateStore(services.config.max_request_templates)
        self.produce_templates = ProduceTemplates(store)
        self._templates: dict[int, Templates] = {
            fetch.API_KEY: FetchTemplates(store),
            list_offsets.API_KEY: ListOffsetsTemplates(store),
        }
        self._answered: dict[int, int] = {}
        """The number of requests of each API that templates answered in this round."""

    def handle(self, conn: Connection, frame: memoryview, opened: Opened | None = None) -> None:
        """Execute one request; an error closes its connection. `opened` is what a template has read of it."""
        try:
            if conn.authentication is not None and not self._authenticator.admits(conn, frame):
                return
            if opened is None and len(frame) > 1 and (templates := self._templates.get(frame[1])) is not None:
                opened = templates.open(frame)
            if opened is not None:
                template, correlation_id, request, records = opened
                api = self._apis[template.api_key]
                rights = None if conn.rights is None else conn.rights[api, conn.user]
                call = _record(
                    RequestContext,
                    (
                        self._services, template.version, template.client_id, conn.peer, request, None, _NO_TAGS,
                        conn.listener, None, conn.opened, records, rights,
                    ),
                )  # fmt: skip
                self._execute(conn, frame, api, call, correlation_id, template)
            elif (decoded := self._decode(conn, frame)) is not None:
                self._execute(conn, *decoded)
        except (WireError, ApiError) as error:
            if self._commit.answer_first(conn):
                self._channel.connections.close(conn, str(error))
            else:
                conn.decoder.put_back(frame)  # it closes the connection when it is executed again
        except Exception as error:
            self._commit.answer_first(conn)  # a fault closes it anyway
            self._channel.failed([conn], error)
        if not conn.readable:
            self._channel.connections.stalled.append(conn)

    def end_round(self) -> None:
        """Measure the requests that templates answered in this round."""
        if self._answered:
            took_ns = self._clock.clock_ns() - self._clock.began_ns
            for key, number in self._answered.items():
                self._services.metrics.of_api(key).observe(took_ns, number)
            self._answered.clear()

    def _execute(
        self,
        conn: Connection,
        frame: memoryview,
        served: Api,
        call: RequestContext,
        correlation_id: int,
        template: Template | None = None,
    ) -> None:
        """Call the handler of a request, and send its response: now, at the commit, or when it is ready."""
        api, quotas = served, self._services.quotas
        if quotas is not None and not served.between_brokers:
            api = self._throttle.metered(conn, served, call.client_id, len(frame), quotas)
        try:
            if (rights := call.rights) is None or not rights.is_asked_first:
                response = api.handle(call, self._clock.now)
            else:
                response = handle_authorized(api, call, rights, self._clock.now)
            if response.__class__ is GeneratorType:
                try:
                    next(response)
                except StopIteration as done:  # the first slice was all
                    response = done.value
        except Backpressure as wait:
            self._try_again(conn, frame, wait.retry_wall_ms)
            return
        if response.__class__ is StagedProduce:
            response.conn, response.codec = conn, api.codec
            response.correlation_id, response.began_ns = correlation_id, self._clock.began_ns
            if response.steps is not None:
                steps = self._stage_in_steps(conn, frame, response.steps)
                self._channel.slices.begin(conn, self._guarded(conn, frame, steps))
                return
            conn.staged += 1
            if api is not served:
                self._commit.commit()  # so that the client is held back from this request on, as the answer says
            elif api.__class__ is Api:  # rows other than the table's (failures of a test) do more than encode an answer
                response.template = template
            if not response.acks:
                self._commit.is_due = True  # a failure closes the connection
        elif isinstance(response, Postponed):
            at_once(self._postpone(conn, frame, response), self._clock.now)
            return
        else:
            self._commit.answer_first(conn)
            if response.__class__ is GeneratorType:
                kept = memoryview(bytearray(frame))
                rest = self._handle_in_steps(conn, api, call, correlation_id, response)
                self._channel.slices.begin(conn, self._guarded(conn, kept, rest))
            else:
                self._answer(conn, api, call, correlation_id, template, response)
        # Not earlier: a request without ids is executed again, and shall find what the thread has made of its records.
        if conn.opened is not None:
            self._opening.finish(conn)

    def _postpone(self, conn: Connection, frame: memoryview, postponed: Postponed) -> Steps[None]:
        """Keep a Produce that is postponed, and have it executed again."""
        if isinstance(postponed, WithoutIds):
            self._try_again(conn, frame, postponed.retry_wall_ms)
        elif isinstance(postponed, LogReserved):
            self._opening.wait(conn, frame, postponed.log)
        elif isinstance(postponed, AwaitsVerification):
            self._opening.verify(conn, frame, postponed.verifications)
        else:
            yield from self._opening.open_in_steps(conn, frame)

    def _answer(
        self,
        conn: Connection,
        api: Api,
        call: RequestContext,
        correlation_id: int,
        template: Template | None,
        response: Any,
    ) -> None:
        if response.__class__ is Delayed:
            self._channel.wait(conn, api.codec, call.version, correlation_id, response)
        elif response.__class__ is Delegation:
            delegate(conn, response.client, self._services)
            self._channel.reply(conn, api.codec, call.version, correlation_id, response, None)
        elif response is None:
            self._services.metrics.of_api(api.key).observe(self._clock.clock_ns() - self._clock.began_ns)
        # Rows other than the table's (quotas, failures of a test) do more with an answer than encode it.
        elif template is None or api.__class__ is not Api or not self._encode(conn, template, correlation_id, response):
            self._channel.reply(conn, api.codec, call.version, correlation_id, response, None)

    # --- large requests ------------------------------------------------------------------------------------------

    def _decode_in_steps(
        self, conn: Connection, frame: memoryview, api: Api, header: RequestHeader, position: int
    ) -> Steps[None]:
        """Decode a request in slices, then execute it. `frame` must stay valid until the last slice."""
        limits = self._limits_of(api, conn)
        decoded = yield from api.codec.decode_in_steps(header.version, frame, position, limits)
        call = self._context(conn, api, header.version, header.client_id, *decoded)
        self._execute(conn, frame, api, call, header.correlation_id)

    def _stage_in_steps(self, conn: Connection, frame: memoryview, steps: Steps[Postponed | None]) -> Steps[None]:
        """Stage and append the batches of a Produce for many partitions, slice by slice, then answer."""
        try:
            next(steps)
            while True:
                self._commit.commit()
                steps.send((yield))
        except StopIteration as done:
            postponed = done.value
        if postponed is not None:
            yield from self._postpone(conn, frame, postponed)
            return
        if conn.opened is not None:
            self._opening.finish(conn)
        conn.staged += 1
        self._commit.commit()

    def _handle_in_steps(
        self, conn: Connection, api: Api, call: RequestContext, correlation_id: int, handling: Steps[Any]
    ) -> Steps[None]:
        """Execute the rest of a handler that works in slices, then answer."""
        response = yield from rest_of(handling)
        self._answer(conn, api, call, correlation_id, None, response)

    def _guarded(self, conn: Connection, frame: memoryview, steps: Steps[None]) -> Steps[None]:
        """Execute a request in slices; an error closes its connection. Without ids it is executed again later."""
        try:
            yield from steps
        except Backpressure as wait:
            self._try_again(conn, frame, wait.retry_wall_ms)
        except (WireError, ApiError) as error:
            self._channel.connections.close(conn, str(error))
        except Exception as error:
            self._channel.failed([conn], error)

    # --- parts ---------------------------------------------------------------------------------------------------

    def _encode(self, conn: Connection, template: Template, correlation_id: int, response: Any) -> bool:
        """Send an answer that the template encodes; return False if it has to be encoded in full."""
        reply = template.encode(correlation_id, response)
        if reply is None:
            return False
        parts, size = reply
        conn.put(parts, size)
        self._channel.connections.answered.append(conn)
        self._answered[template.api_key] = self._answered.get(template.api_key, 0) + 1
        return True

    def _decode(self, conn: Connection, frame: memoryview) -> tuple[memoryview, Api, RequestContext, int] | None:
        """Decode a request in full. Return (frame, row, request, correlation id).

        The frame is a copy if the request needs its bytes in later turns. Return None if the request is answered
        already, or large and cold: then it is executed in slices.
        """
        header = read_request_header(frame)
        key, version, correlation_id = header.api_key, header.version, header.correlation_id
        api = self._apis.get(key)
        if api is None or not api.serves(version):
            if api is not None and key == API_VERSIONS:
                self._unsupported(conn, api, correlation_id)
                return None
            api = self._of_brokers(conn, key, version)
        if self._uninformed is not None and self._awaits_image(conn, frame, key):
            return None
        position = api.body(frame, header)
        if len(frame) > BYTES_AT_ONCE and (api.codec.is_cold or (key != PRODUCE and len(frame) > READ_BYTES_AT_ONCE)):
            kept = memoryview(bytearray(frame))  # because the frame is invalid after the turn
            steps = self._decode_in_steps(conn, kept, api, header, position)
            self._channel.slices.begin(conn, self._guarded(conn, kept, steps))
            return None
        request, original, tags = api.codec.decode(version, frame, position, self._limits_of(api, conn))
        if key in self._templates:
            self._templates[key].learn(frame, header, request)
        elif key == PRODUCE and len(request.partitions) > PARTITIONS_AT_ONCE:
            frame = memoryview(bytearray(frame))
            request, original, tags = api.codec.decode(version, frame, position, self._limits)
        call = self._context(conn, api, version, header.client_id, request, original, tags)
        return frame, api, call, correlation_id

    def _awaits_image(self, conn: Connection, frame: memoryview, key: int) -> bool:
        """Hold a client's request until the controller has told this broker of the cluster; return True if it waits.

        Without that, every topic would be unknown. Kafka's brokers say so for a moment, and some clients then wait
        for minutes before they ask again.
        """
        if key in SERVED_UNINFORMED:
            return False
        member = self._uninformed
        if member is None or member.is_informed:
            self._uninformed = None
            return False
        conn.hold(frame)
        waiting: Delayed[bool] = Delayed(
            (IMAGE_CAME,),
            self._clock.now.ms + IMAGE_WAIT_MS,
            lambda now: True if member.is_informed else None,
            lambda now: True,
        )
        # Not limited: if the purgatory answered it early, it would be executed at once, for ever.
        self._services.purgatory.watch(
            waiting, lambda _: self._execute_held(conn), self._clock.now, limited=False
        )
        return True

    def _limits_of(self, api: Api, conn: Connection) -> RequestLimits:
        """Return the limits of a request. Those of brokers hold at the listeners that are named for them."""
        is_of_broker = api.between_brokers and conn.listener in self._services.broker_listeners
        return self._broker_limits if is_of_broker else self._limits

    def _of_brokers(self, conn: Connection, key: int, version: int) -> Api:
        """Return the row of a request that only other brokers may send, on their listeners. Raise WireError."""
        api = INTER_BROKER.get(key) if self._services.serves_brokers(conn.listener) else None
        if api is not None and api.serves(version):
            return api
        api = self._apis.get(key)
        if api is None:
            raise WireError(f"API key {key} (v{version}) is not known; these bytes may not be Kafka's protocol")
        raise WireError(api.not_served(version))

    def _context(
        self,
        conn: Connection,
        api: Api,
        version: int,
        client_id: str | None,
        request: Any,
        original: Any,
        tags: Any,
    ) -> RequestContext:
        return _record(
            RequestContext,
            (
                self._services, version, client_id, conn.peer, request, original, tags, conn.listener, None,
                conn.opened, None, None if conn.rights is None else conn.rights[api, conn.user],
            ),
        )  # fmt: skip

    def _unsupported(self, conn: Connection, api: Api, correlation_id: int) -> None:
        """Answer an unknown version of ApiVersions in v0, with the versions that are served (KIP-511)."""
        self._channel.reply(conn, api.codec, 0, correlation_id, api.unsupported_versions(), None)

    def _try_again(self, conn: Connection, frame: memoryview, retry_wall_ms: int) -> None:
        """Keep a request that had no effect, and execute it again later; its connection is not read meanwhile."""
        conn.hold(frame)
        now = self._clock.now
        deadline_ms = now.ms + max(retry_wall_ms - now.wall_ms, 1)
        self._services.purgatory.call_at(deadline_ms, lambda _: self._execute_held(conn))

    def _execute_held(self, conn: Connection) -> None:
        """Execute the request of a connection that was held, in the next turn."""
        held = conn.release()
        if held is not None and conn.close_reason is None:
            conn.decoder.put_back(held)
            self._channel.queue.resume(conn)
