"""The rules that make users of certificates: the examples of KIP-371 and of Kafka's documentation."""

import pytest

from broker.security.principal_rules import parse_rules, user_of

RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
        ("CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        ("CN=ada", "CN=ada"),
    ],
)
def test_the_first_rule_that_matches_makes_the_user(name, user):
    assert user_of(name, parse_rules(RULES)) == user


@pytest.mark.parametrize(
    ("rule", "user"),
    [("RULE:^CN=(.*)$/$1/U", "ADA"), ("RULE:^CN=(.*)$/$1/L", "ada"), ("RULE:^CN=(.*)$/user-$1/", "user-Ada")],
)
def test_a_rule_changes_letters_as_it_says(rule, user):
    assert user_of("CN=Ada", parse_rules(rule)) == user


def test_a_pattern_matches_the_whole_name_or_not_at_all():
    assert user_of("CN=ada,O=x", parse_rules("RULE:CN=ada/found/")) is None


def test_a_pattern_and_a_replacement_may_have_slashes_and_dollars():
    assert user_of("CN=a/b", parse_rules(r"RULE:^CN=(.*)\/(.*)$/$2\$\/$1/")) == "b$/a"


def test_an_empty_setting_is_the_default():
    assert user_of("CN=ada", parse_rules("")) == "CN=ada"


@pytest.mark.parametrize("text", ["RULE:^CN=(.*)$/$1", "rule:x/y/", "DEFAULT DEFAULT", "RULE:x/y/Q", "x"])
def test_a_text_that_is_no_rule_is_refused(text):
    with pytest.raises(ValueError, match="must be RULE:pattern/replacement/"):
        parse_rules(text)


def test_a_pattern_that_is_none_and_a_group_that_is_not_there_are_refused():
    with pytest.raises(ValueError, match="is no pattern"):
        parse_rules("RULE:(/x/")
    with pytest.raises(ValueError, match="names group 2; the pattern has 1"):
        parse_rules("RULE:(.*)/$2/")
