"""The command line. Each command's module is imported when the command is run, so `--help` is quick."""

from importlib import import_module

import click

COMMANDS = {
    "server": "flakelog.commands.server",
    "idgen": "flakelog.commands.server",
    "topic": "flakelog.commands.topic",
    "group": "flakelog.commands.group",
    "config": "flakelog.commands.config",
    "produce": "flakelog.commands.produce",
    "consume": "flakelog.commands.consume",
    "id": "flakelog.commands.id",
    "settings": "flakelog.commands.settings",
    "compat": "flakelog.commands.compat",
    "replay": "flakelog.commands.replay",
    "demo": "flakelog.commands.demo",
}


class Commands(click.Group):
    """Commands by name, loaded when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        home = COMMANDS.get(name)
        if home is None:
            return None
        command: click.Command = getattr(import_module(home), name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flakelog")
def main() -> None:
    """Flakelog: a commit log on Kafka's protocol whose every message carries a Snowflake id.

    Exit codes: 0 done, 1 it could not be done or was not found, 2 called wrongly, 3 nobody answers at the address.
    """


if __name__ == "__main__":
    main()
