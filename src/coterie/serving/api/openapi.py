"""The service described in OpenAPI: which runs it has, what their rows look like, what is answered."""

from __future__ import annotations

from typing import Any

from coterie.core.version import __version__
from coterie.serving.api.row_schema import Json, label_schema, row_example, rows_schema
from coterie.serving.api.runs import Runs
from coterie.serving.api.served_run import ServedRun

MANY = 500  # names of clients that are listed
NUMBER = {"type": ["number", "null"]}
PROBLEMS = {
    400: "not JSON",
    404: "no such run",
    408: "the body came too slowly",
    409: "the name cannot be kept",
    413: "too large",
    415: "not application/json",
    422: "a field is wrong; it is named",
    500: "the run cannot answer",
    503: "no answer within the time limit",
}


def document(runs: Runs, secured: bool) -> Json:
    """The OpenAPI document of the runs as they are now."""
    only = None if runs.only is None else runs.only.now
    names = list(runs.by_name)
    paths: Json = {
        "/healthz": {"get": _get("Whether the service is there", {"type": "object"}) | {"security": []}},
        "/runs": {"get": _get("The runs that are served", _list_of_runs())},
        "/metrics": {"get": _plain("Counters for Prometheus")},
    }
    paths |= _of_run("", names, only)
    for name, live in runs.by_name.items():
        paths |= _of_run(f"/runs/{name}", [name], live.now)
    out: Json = {
        "openapi": "3.1.0",
        "info": {"title": "Coterie", "version": __version__, "description": "Predictions of trained runs."},
        "paths": paths,
        "components": {"schemas": {"Error": _error()}},
    }
    if secured:
        out["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        out["security"] = [{"token": []}]
    return out


def _of_run(start: str, names: list[str], run: ServedRun | None) -> Json:
    """The addresses of one run; run None: of any, whose rows are then not described."""
    which: Json = {"run": {"type": "string", "enum": names}}
    needed = ["run"] if len(names) > 1 else []
    query = [
        {"name": "run", "in": "query", "required": bool(needed), "schema": which["run"]},
        {"name": "members", "in": "query", "schema": {"type": "string", "enum": ["true", "false"]}},
    ]
    at = f" ({names[0]})" if start else ""
    clusters = _get(f"Sizes and scores of the clusters{at}", _clusters()) | {"parameters": query}
    clusters["responses"] |= _problems(404, 422)
    return {
        f"{start}/predict": {
            "post": _post(f"Predict{at}", _predict(which, needed, run), _prediction(), _predict_example(run), 409)
        },
        f"{start}/assign": {
            "post": _post(f"The cluster of a new client{at}", _assign(which, needed, run), _assignment(), None)
        },
        f"{start}/clusters": {"get": clusters},
    }


def _predict(which: Json, needed: list[str], run: ServedRun | None) -> Json:
    client: Json = {"type": ["integer", "string"], "description": "A client's number or name."}
    cluster: Json = {"type": "integer", "minimum": 0, "description": "A cluster's number, instead of a client."}
    if run is not None:
        names = run.result.known.names
        client = {"type": "integer", "minimum": 0, "maximum": len(run.result.known) - 1}
        if names is not None:
            client = {"type": "string"} | ({"enum": list(names)} if len(names) <= MANY else {})
        cluster["maximum"] = run.networks - 1
    rows = rows_schema(None if run is None else run.result)
    properties = which | {"client": client, "cluster": cluster, "rows": rows, "proba": {"type": "boolean"}}
    if run is not None and run.result.model.loss != "cross_entropy":
        del properties["proba"]
    if run is not None and not run.networks:
        del properties["cluster"]
        return _object(properties, [*needed, "client", "rows"])
    return _object(properties, [*needed, "rows"]) | {"oneOf": [{"required": ["client"]}, {"required": ["cluster"]}]}


def _assign(which: Json, needed: list[str], run: ServedRun | None) -> Json:
    result = None if run is None else run.result
    labels = {"type": "array", "minItems": 1, "items": label_schema(result), "description": "One for each row."}
    keep = {
        "type": "string",
        "minLength": 1,
        "maxLength": 200,
        "description": "Keep the client in memory by this name, for /predict.",
    }
    properties = which | {"rows": rows_schema(result), "labels": labels, "keep": keep}
    return _object(properties, [*needed, "rows", "labels"])


def _predict_example(run: ServedRun | None) -> Json | None:
    if run is None:
        return None
    names = run.result.known.names
    return {"client": 0 if names is None else names[0], "rows": [row_example(run.result)]}


def _prediction() -> Json:
    properties = {
        "run": {"type": "string"},
        "cluster": {"type": ["integer", "null"]},
        "predictions": {"type": "array"},
        "probabilities": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "classes": {"type": "array"},
        "warnings": {"type": "array", "items": {"type": "string"}},
    }
    return _object(properties, ["run", "cluster"])


def _assignment() -> Json:
    shares = {"type": ["array", "null"], "items": {"type": "number"}}
    place: Json = {"type": ["integer", "null"]}
    properties = {"run": {"type": "string"}, "cluster": place, "nearest": place, "fits": {"type": ["boolean", "null"]}}
    properties |= {"p_value": NUMBER, "confidence": NUMBER, "shares": shares}
    properties |= {"tested": {"type": "integer"}, "accuracy": NUMBER, "loss": NUMBER}
    properties |= {"kept": {"type": ["string", "null"]}, "warnings": {"type": "array", "items": {"type": "string"}}}
    return _object(properties, [name for name in properties if name != "warnings"])


def _clusters() -> Json:
    members = {"type": "array", "items": {"type": ["integer", "string"]}}
    row = {"cluster": {"type": "integer"}, "clients": {"type": "integer"}, "accuracy": NUMBER, "loss": NUMBER}
    row |= {"client_accuracy": NUMBER, "client_loss": NUMBER}
    rows = {"type": "array", "items": _object(row | {"members": members}, list(row))}
    properties = {"run": {"type": "string"}, "method": {"type": "string"}, "round": {"type": "integer"}}
    return _object(properties | {"clusters": rows}, [*properties, "clusters"])


def _list_of_runs() -> Json:
    run: Json = {"name": {"type": "string"}, "method": {"type": "string"}}
    run |= {name: {"type": "integer"} for name in ("round", "clients", "clusters", "kept")}
    run |= {"accuracy": NUMBER, "loss": NUMBER}
    return _object({"runs": {"type": "array", "items": _object(run, list(run))}}, ["runs"])


def _error() -> Json:
    said = {"code": {"type": "string"}, "message": {"type": "string"}, "field": {"type": ["string", "null"]}}
    return _object({"error": _object(said, list(said))}, ["error"])


def _object(properties: Json, required: list[str]) -> Json:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _get(summary: str, schema: Json) -> Json:
    return {"summary": summary, "responses": {"200": _response("the answer", schema)}}


def _plain(summary: str) -> Json:
    return {
        "summary": summary,
        "responses": {"200": {"description": "text", "content": {"text/plain": {"schema": {"type": "string"}}}}},
    }


def _post(summary: str, schema: Json, answer: Json, example: Json | None, *never: int) -> Json:
    content: Json = {"schema": schema} | ({} if example is None else {"example": example})
    problems = _problems(*(status for status in PROBLEMS if status not in never))
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {"200": _response("the answer", answer)} | problems,
    }


def _problems(*statuses: int) -> Json:
    schema: dict[str, Any] = {"$ref": "#/components/schemas/Error"}
    return {str(status): _response(PROBLEMS[status], schema) for status in statuses}


def _response(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
