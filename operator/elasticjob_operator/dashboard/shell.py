"""The frame of every page, and small pieces of HTML. Pure."""

from __future__ import annotations

from typing import Final

from elasticjob_operator.html_report import escape

_ICON: Final = '<link rel="icon" href="/assets/icon.svg" type="image/svg+xml">'


def build_page(title: str, main: str, *, stream: str = "") -> str:
    """A whole page. `stream`: the address of its changes."""
    live = f' data-stream="{escape(stream)}"' if stream else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{escape(title)}</title>{_ICON}<link rel="stylesheet" href="/assets/style.css">'
        '<script src="/assets/dashboard.js" defer></script></head>'
        f'<body{live}><a class="skip" href="#main">Skip to the content</a>'
        '<header><nav aria-label="Dashboard"><a class="brand" href="/">ElasticJobs</a></nav>'
        '<p id="live" role="status" class="soft"></p></header>'
        f'<main id="main" tabindex="-1">{main}</main></body></html>\n'
    )


def build_message(title: str, message: str, back: str = "/") -> str:
    """A page that says one thing."""
    return build_page(
        title, f'<h1>{escape(title)}</h1><p>{escape(message)}</p><p><a href="{escape(back)}">Continue</a></p>'
    )


def build_entry(target: str) -> str:
    """Goes on to the page without the token.

    Not a redirect: where a link in another site's page led here, the browser would follow it without the new cookie.
    """
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ElasticJobs</title>'
        f'<meta http-equiv="refresh" content="0;url={escape(target)}"></head>'
        f'<body><a href="{escape(target)}">Continue</a></body></html>\n'
    )


def build_problem(problem: str) -> str:
    return f'<p class="problem" role="alert">{escape(problem)}</p>' if problem else ""


def since(seconds: float | None, text: str) -> str:
    """A duration that the script keeps up to date."""
    return f'<time data-since="{seconds:.0f}">{escape(text)}</time>' if seconds is not None else "-"
