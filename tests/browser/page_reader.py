"""Look at a page that a browser shows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

SECONDS = 20.0


def wait(browser: Chrome, condition: str, seconds: float = SECONDS) -> Any:
    """Wait until a script returns something true."""
    until = time.monotonic() + seconds
    while not (value := browser.execute_script(condition)):
        assert time.monotonic() < until, f"{condition}\n{browser.find_element('tag name', 'body').text[:2000]}"
        time.sleep(0.05)
    return value


def text_of(browser: Chrome, selector: str) -> str:
    """Return the text of an element, also of its part that is not in view."""
    text: str = browser.execute_script("return document.querySelector(arguments[0]).textContent", selector)
    return text
