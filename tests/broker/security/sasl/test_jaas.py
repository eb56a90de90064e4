"""JAAS text, as Kafka reads it."""

import pytest

from broker.security.sasl.jaas import parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_a_module_has_a_class_a_flag_and_options():
    module = parse_jaas(f'{PLAIN} required username="broker" password="b" user_ada="ada-secret" user_bob=plain;')
    assert module.name == PLAIN and module.class_name == "PlainLoginModule" and module.flag == "required"
    assert module.options == {"username": "broker", "password": "b", "user_ada": "ada-secret", "user_bob": "plain"}


def test_a_module_may_have_no_options_and_any_case_of_its_flag():
    assert parse_jaas("a.ScramLoginModule REQUIRED;").options == {}
    assert parse_jaas("a.ScramLoginModule Sufficient ;").flag == "sufficient"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"a b;c=d"', "a b;c=d"),
        ("'single \"double\" inside'", 'single "double" inside'),
        (r'"a \"quote\" and \\"', 'a "quote" and \\'),
        (r'"tab\tnewline\nbell\a octal\101\7"', "tab\tnewline\nbell\a octalA\x07"),
        ('"ünï/cödé"', "ünï/cödé"),
        ("/* a comment */ word", "word"),
        ("// a comment\n word", "word"),
    ],
)
def test_values_have_quotes_escapes_and_comments_as_in_java(text, value):
    assert parse_jaas(f"{PLAIN} required user_ada={text};").options == {"user_ada": value}


def test_lines_and_blanks_separate_as_spaces_do():
    assert parse_jaas(f'\n{PLAIN}\trequired\n  user_ada = "x"\n;\n').options == {"user_ada": "x"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must have one login module, and has 0"),
        (f"{PLAIN} required; {PLAIN} required;", "and has 2"),
        (f"{PLAIN};", f"no control flag stands behind {PLAIN}"),
        (PLAIN, f"no control flag stands behind {PLAIN}"),
        (f"{PLAIN} always;", "must stand one of required, requisite, sufficient, optional"),
        (f'{PLAIN} required user_ada="marked"', "no semicolon ends it"),
        (f"{PLAIN} required user_ada;", "an option has no = behind its name"),
        (f"{PLAIN} required user_ada=;", "option user_ada has no value"),
        (f"{PLAIN} required user_ada=a marked;", "an option has no ="),
        ("= required;", "a login module must stand before ="),
    ],
)
def test_an_error_says_what_is_right_and_shows_no_value(text, told):
    with pytest.raises(ValueError) as error:
        parse_jaas(text)
    assert told in str(error.value)
    assert "marked" not in str(error.value)
