"""The messages of a group of errors are those of its errors."""

from libs.testbed.error_messages import list_messages


def test_the_messages_of_nested_groups_are_those_of_their_errors():
    inner = ExceptionGroup("two faults", [TimeoutError("nats-killed"), TimeoutError("api-429")])
    assert list_messages(ExceptionGroup("run", [inner, TimeoutError("web-1 joins")])) == [
        "nats-killed",
        "api-429",
        "web-1 joins",
    ]
