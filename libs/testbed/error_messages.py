"""The messages of the errors in a group."""


def list_messages(error: BaseException) -> list[str]:
    """Return the message of an error, or those of all errors in a group and in the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        return [message for each in error.exceptions for message in list_messages(each)]
    return [str(error) or type(error).__name__]
