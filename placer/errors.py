"""The one error that Placer raises for what a person can put right."""


class PlacerError(ValueError):
    """Bad input or an impossible request.

    The message is a single line that says what is wrong, where (node, file, flag) and what to do.
    The command line prints it and exits with code 2.
    """


class InfeasibleError(PlacerError):
    """No placement can satisfy the constraints; the message says which device lacks what."""
