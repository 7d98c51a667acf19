"""What to say where an optional package is not installed."""


def missing(package: str) -> ImportError:
    """An error with the line that helps; extras are named after the package."""
    return ImportError(
        f"tagalong.integrations.{package} needs the package `{package}`: pip install 'tagalong[{package}]'",
        name=package,
    )
