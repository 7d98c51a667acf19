"""What to say where an optional package is not installed."""


def missing(part: str, package: str | None = None) -> ImportError:
    """An error with the line that helps.

    Args:
        part: of the integrations; the extra is called the same.
        package: that it needs, where that has another name.
    """
    return ImportError(
        f"tagalong.integrations.{part} needs the package `{package or part}`: pip install 'tagalong[{part}]'",
        name=part,
    )
