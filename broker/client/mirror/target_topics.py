"""SHELL (asyncio): makes the topics of the source at the target, lets them grow, and keeps their settings alike."""

import logging
from collections.abc import Iterable

from broker.client.asyncio import AsyncClient
from broker.client.config_admin import TOPIC, Resource, alter_configs, describe_configs
from broker.client.consumer_offsets import passes
from broker.client.core import TopicInfo
from broker.client.errors import BrokerError
from broker.client.mirror.topic_settings import settings_to_change, settings_to_copy
from broker.client.topic_admin import add_partitions, create_topic
from broker.wire.errors import ErrorCode

_log = logging.getLogger("broker.client.mirror")


class TargetTopics:
    """The topics of the target that have a source."""

    def __init__(self, source: AsyncClient, target: AsyncClient, prefix: str) -> None:
        self._source = source
        self._target = target
        self._prefix = prefix
        self._refused: set[tuple[str, str, str | None]] = set()  # settings of topics that the target does not take

    async def follow(self, topics: Iterable[TopicInfo]) -> dict[str, BrokerError]:
        """Let the target have these topics of the source, with at least as many partitions.

        Return why the target refuses topics, by their names at the source. Raise an error that passes.
        """
        wanted = {self._prefix + topic.name: topic for topic in topics}
        there = await self._target.run(self._target.core.look_up(wanted))
        refused = {}
        for name, topic in wanted.items():
            try:
                await self._follow(name, topic, there[name])
            except BrokerError as error:
                if passes(error):
                    raise
                refused[topic.name] = error
        return refused

    async def _follow(self, name: str, topic: TopicInfo, there: TopicInfo | BrokerError) -> None:
        """Make the topic `name`, or let it grow. Raise BrokerError."""
        if isinstance(there, TopicInfo):
            if there.partitions < topic.partitions:
                await self._grow(name, topic.partitions)
        elif there.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            await self._make(name, topic)
        else:
            raise there

    async def _make(self, name: str, topic: TopicInfo) -> None:
        resource = Resource(TOPIC, topic.name)
        wanted = settings_to_copy(await self._source.run(describe_configs(self._source.core, resource)))
        try:
            await self._create(name, topic.partitions, wanted)
        except BrokerError as error:
            if error.code is not ErrorCode.INVALID_CONFIG:
                raise
            await self._create(name, topic.partitions, await self._accepted(name, wanted))

    async def _create(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        try:
            await self._target.create_topic(name, partitions, settings)
        except BrokerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another mirror of this name was quicker
                raise

    async def _accepted(self, name: str, wanted: dict[str, str]) -> dict[str, str]:
        """Return the settings that the target takes. Log the others."""
        accepted = {}
        for setting, value in wanted.items():
            core = self._target.core
            try:
                await self._target.run(create_topic(core, name, 1, {setting: value}, validate_only=True))
            except BrokerError as error:
                if error.code is not ErrorCode.INVALID_CONFIG:
                    raise
                self._log_refusal(name, setting, value, error)
            else:
                accepted[setting] = value
        return accepted

    async def follow_settings(self, names: Iterable[str]) -> None:
        """Give the copies of these topics of the source the settings that it has now. Raise ClientError."""
        for name in names:
            at_source, at_target = Resource(TOPIC, name), Resource(TOPIC, self._prefix + name)
            try:
                settings = await self._source.run(describe_configs(self._source.core, at_source))
                there = await self._target.run(describe_configs(self._target.core, at_target))
            except BrokerError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # one of them was deleted
                    raise
                continue
            changes = settings_to_change(settings, there)
            if changes:
                await self._change(at_target, changes)

    async def _change(self, resource: Resource, changes: dict[str, str | None]) -> None:
        """Change the settings that the target takes. Log the others, once for each value."""
        core = self._target.core
        try:
            await self._target.run(alter_configs(core, resource, changes))
            return
        except BrokerError as error:
            if error.code is not ErrorCode.INVALID_CONFIG:
                raise
        for setting, value in changes.items():
            try:
                await self._target.run(alter_configs(core, resource, {setting: value}))
            except BrokerError as error:
                if error.code is not ErrorCode.INVALID_CONFIG:
                    raise
                self._log_refusal(resource.name, setting, value, error)

    def _log_refusal(self, name: str, setting: str, value: str | None, error: BrokerError) -> None:
        if (name, setting, value) not in self._refused:
            self._refused.add((name, setting, value))
            _log.warning("%s: the target does not take %s=%s: %s", name, setting, value, error)

    async def _grow(self, name: str, partitions: int) -> None:
        try:
            await self._target.run(add_partitions(self._target.core, name, partitions))
        except BrokerError as error:
            if error.code is not ErrorCode.INVALID_PARTITIONS:  # another mirror of this name was quicker
                raise
