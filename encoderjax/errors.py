"""The one kind of error that a user can mend."""


class UserError(ValueError):
    """What the user can mend: one line that names field, value, rule and remedy.

    The commands print it without a traceback. Everything else that is raised is
    a bug and keeps its traceback.
    """
