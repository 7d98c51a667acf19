"""A page in a browser."""

from pathlib import Path
from typing import Any

LONG = "a & b $x$" + " that goes on and on" * 12
HOSTILE = ("<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "is_male", LONG, "%{x}", "</script><b>x")


class BrowserPage:
    """A page in the browser, and its errors, messages and network requests."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.complaints: list[str] = []
        self.page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **context})
        self.page.on("console", lambda message: self.complaints.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.complaints.append(f"request: {request.url}"))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-ready]")
        self.complaints.remove(f"request: {file.as_uri()}")

    def drawn_plot(self, name: str) -> Any:
        """Scrolls to the plot with this id and returns it once it is drawn."""
        self.page.locator(f"#{name}").scroll_into_view_if_needed()
        self.page.wait_for_selector(f"#{name} .main-svg")
        return self.page.locator(f"#{name}")
