"""/docs: the OpenAPI document as a page that loads nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
:root { color-scheme: light dark }
h2 { border-top: 1px solid #8886; padding-top: 1.2rem; font-size: 1.1rem }
code, pre { font: 14px/1.5 ui-monospace, monospace } pre { overflow-x: auto; padding: .8rem; background: #8882 }
table { border-collapse: collapse } td, th { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top }
.verb { color: #0a7f74; font-weight: 600 }
"""
LONG = 1500  # characters of a schema or an example that are shown


def page(document: dict[str, Any]) -> str:
    """The page."""
    title = f"{document['info']['title']} {document['info']['version']}"
    head = (
        f'<meta charset="utf-8"><title>{escape(title)}</title><meta name="viewport" content="width=device-width">'
        f"<style>{STYLE}</style>"
    )
    begin = (
        f'<h1>{escape(title)}</h1><p>The same for programs: <a href="openapi.json">openapi.json</a>. '
        'An error is <code>{"error": {"code", "message", "field"}}</code>.</p>'
    )
    rest = "".join(_parts(document))
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{begin}{rest}</body></html>'


def _parts(document: dict[str, Any]) -> Iterator[str]:
    for path, verbs in document["paths"].items():
        for verb, about in verbs.items():
            yield f'<h2><span class="verb">{verb.upper()}</span> <code>{escape(path)}</code></h2>'
            yield f"<p>{escape(about['summary'])}</p>"
            body = about.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                yield _fields(body["schema"])
                if "example" in body:
                    example = _cut(json.dumps(body["example"]))
                    yield f"<pre>curl --json '{escape(example)}' http://HOST:PORT{escape(path)}</pre>"
            elif about.get("parameters"):
                names = ", ".join(f"<code>{escape(one['name'])}</code>" for one in about["parameters"])
                yield f"<p>Query: {names}</p>"
            rows = (
                f"<tr><td>{escape(status)}</td><td>{escape(said['description'])}</td></tr>"
                for status, said in about["responses"].items()
            )
            yield f"<table>{''.join(rows)}</table>"


def _fields(schema: dict[str, Any]) -> str:
    rows = (
        f"<tr><td><code>{escape(name)}</code>{' (required)' if name in schema['required'] else ''}</td>"
        f"<td>{escape(one.get('description', ''))} <code>{escape(_cut(json.dumps(one), 300))}</code></td></tr>"
        for name, one in schema["properties"].items()
    )
    return f"<table><tr><th>field</th><th>value</th></tr>{''.join(rows)}</table>"


def _cut(text: str, most: int = LONG) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."
