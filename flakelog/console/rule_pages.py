"""The pages of access rules and of users. Requests read them, so that the broker judges who may see them."""

from typing import Any

from broker.client.blocking import Client
from broker.services.context import BrokerServices
from flakelog.console import rules
from flakelog.console.message_pages import Jobs
from flakelog.console.pages import View
from flakelog.console.visit import Fields
from flakelog.operations import acls, users

RULES, USERS = "/console/rules", "/console/users"


class RulePages:
    """The access rules and the users of a cluster. Each method returns a Deferred of a View, or a View."""

    def __init__(self, services: BrokerServices, jobs: Jobs) -> None:
        self._services = services
        self._jobs = jobs

    def rules_page(self, fields: Fields) -> Any:
        """Return the rules that the form asks for. Raise BadField."""
        query, number = rules.query_of(fields), fields.number("page")
        if self._services.authorizer is None:
            page = rules.rules_page(query, (), 0)._replace(is_guarded=False)
            return View("rules.html", "Access rules", RULES, page)

        def read(client: Client) -> rules.RulesPage:
            return rules.rules_page(query, acls.list_acls(client, query.acl_filter), number)

        return self._jobs.run(read).addCallback(lambda page: View("rules.html", "Access rules", RULES, page))

    def users_page(self, fields: Fields) -> Any:
        """Return the users that have passwords for SCRAM."""
        search, number = fields.text("search"), fields.number("page")

        def read(client: Client) -> rules.UsersPage:
            return rules.users_page(users.list_users(client), search, number)

        return self._jobs.run(read).addCallback(lambda page: View("users.html", "Users", USERS, page))
