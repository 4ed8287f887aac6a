"""A Chat Completions request as a Responses request, for accounts that speak nothing else (ChatGPT sign-ins). Pure.

What decides the answer is carried over or refused by name; nothing that changes its meaning is dropped in silence. Left out are
bounds and sampling that the backend does not take (it chooses both itself), and what only concerns the client's own books.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from config.json_bounds import has_too_many
from proxy.dialects.fields import Fields
from proxy.dialects.inspection import FAST_TIERS, Inspection, NotServed
from proxy.errors import InvalidJson

# Read by `request`, by name.
_CARRIED = frozenset(
    {"model", "messages", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "response_format"}
    | {"reasoning_effort", "reasoning", "verbosity", "service_tier", "prompt_cache_key", "stream", "stream_options"}
)
# The answer means the same without them: bounds and sampling that the backend sets itself, hints, the client's own labels.
_LEFT_OUT = frozenset(
    {"max_tokens", "max_completion_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed"}
    | {"store", "metadata", "user", "safety_identifier", "prompt_cache_retention", "prediction"}
)
# Values at which a field asks for nothing.
_NOTHING: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "stop": ([],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "modalities": (["text"], []),
}
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_AUDIO = b'"input_audio"'
_TOOLS = ("function", "custom")
_INSTRUCTING = ("system", "developer")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def is_possible(found: Fields) -> bool:
    """Can a ChatGPT account be asked this? Told without reading the messages, which may be long; what is wrong in itself counts as
    possible: any account would refuse it."""
    if _AUDIO in found.body:
        return False
    try:
        check(found)
        _reasoning(found, None)
        raw = found.raw("tools") or b"null"
        tools = [] if has_too_many(raw) else _kinds.decode(raw) or []
    except NotServed:
        return False
    except (InvalidJson, msgspec.DecodeError, RecursionError):
        return True
    return all(tool.type in _TOOLS for tool in tools)


class _Kind(msgspec.Struct):
    type: Any = None


_kinds = msgspec.json.Decoder(list[_Kind] | None)


def request(inspection: Inspection, *, model: str) -> bytes:
    """The body for the ChatGPT backend: streamed, not stored, without a bound on the output.

    Raises NotServed for what Responses cannot say, InvalidJson for what is no Chat Completions request; both name the field.
    """
    found = inspection.fields
    check(found)
    instructions, items = _conversation(found.value("messages"))
    tools = _tools(found.value("tools"), found.value("functions"))
    body: dict[str, Any] = {"model": model, "instructions": instructions, "input": items, "stream": True, "store": False}
    choice = _choice(found.value("tool_choice"), found.value("function_call"))
    if not tools and choice not in (None, "none", "auto"):
        name = "tool_choice" if found.value("tool_choice") is not None else "function_call"
        raise InvalidJson(f"The field {name!r} demands a tool, and the request offers none.", param=name)
    if tools:
        body["tools"] = tools
        if choice is not None:
            body["tool_choice"] = choice
        is_parallel = found.value("parallel_tool_calls")
        if is_parallel is not None:
            body["parallel_tool_calls"] = is_parallel
        elif is_legacy(found):
            # A `function_call` of old has room for one.
            body["parallel_tool_calls"] = False
    reasoning = _reasoning(found, inspection.reasoning_effort)
    if reasoning:
        body["reasoning"] = reasoning
    text = _text_options(found.value("response_format"), found.value("verbosity"))
    if text:
        body["text"] = text
    if inspection.service_tier in FAST_TIERS:
        body["service_tier"] = inspection.service_tier
    if inspection.prompt_cache_key is not None:
        body["prompt_cache_key"] = inspection.prompt_cache_key
    try:
        return msgspec.json.encode(body)
    except RecursionError as error:
        raise InvalidJson("The request body is nested too deeply.") from error


def check(found: Fields) -> None:
    """Raises NotServed for a field that cannot be carried over, InvalidJson for one whose value cannot be read."""
    for name in found.spans:
        if name in _CARRIED or name in _LEFT_OUT or found.raw(name) == b"null":
            continue
        if found.value(name) in _NOTHING.get(name, ()):
            continue
        raise NotServed(
            f"The field {name[:80]!r} is not served on ChatGPT accounts, which answer this key's Chat Completions requests.",
            param=name[:80],
        )


def is_legacy(found: Fields) -> bool:
    """Does the client speak of `functions` and expect a `function_call`?"""
    return bool(found.value("functions")) and not found.value("tools")


# --------------------------------------------------------------------------------------------------------------- messages


def _conversation(messages: object) -> tuple[str, list[dict[str, Any]]]:
    """The instructions (the first messages, as far as they instruct; the backend demands the field) and the input items."""
    if not isinstance(messages, list) or not messages:
        raise InvalidJson("The field 'messages' must be a list of messages.", param="messages")
    reader = _Messages()
    leading: list[str] = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise InvalidJson(f"{where} must be an object with one of the roles {', '.join(_ROLES)}.", param=f"{where}.role")
        if message["role"] in _INSTRUCTING and not reader.items:
            leading.append("\n\n".join(_texts(message.get("content"), f"{where}.content")))
        else:
            reader.read(message, where)
    if not reader.items and not leading:
        raise InvalidJson("The field 'messages' says nothing.", param="messages")
    if not reader.items:
        # The model answers the input; instructions alone are none.
        return "", [_said("developer", [{"type": "input_text", "text": text}]) for text in leading]
    return "\n\n".join(leading), reader.items


class _Messages:
    """Reads one message after the other into input items."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._custom_calls: set[str] = set()
        self._function_calls = 0

    def read(self, message: Mapping[str, Any], where: str) -> None:
        role, content = message["role"], message.get("content")
        if role == "assistant":
            self._assistant(message, where)
        elif role == "tool":
            call_id = _string(message.get("tool_call_id"), f"{where}.tool_call_id")
            kind = "custom_tool_call_output" if call_id in self._custom_calls else "function_call_output"
            self.items.append({"type": kind, "call_id": call_id, "output": self._output(content, where)})
        elif role == "function":
            # The answer to the last `function_call`; those have no ids.
            output = {"type": "function_call_output", "call_id": f"call_{self._function_calls}"}
            self.items.append({**output, "output": self._output(content, where)})
        else:
            name = "developer" if role in _INSTRUCTING else "user"
            self.items.append(_said(name, list(_parts(content, f"{where}.content"))))

    @staticmethod
    def _output(content: object, where: str) -> str | list[dict[str, Any]]:
        if content is None:
            return ""
        return content if isinstance(content, str) else list(_parts(content, f"{where}.content"))

    def _assistant(self, message: Mapping[str, Any], where: str) -> None:
        if message.get("audio") is not None:
            raise NotServed("Audio is not served on ChatGPT accounts.", param=f"{where}.audio")
        said = list(_assistant_parts(message, where))
        calls = message.get("tool_calls") or []
        call = message.get("function_call")
        if not isinstance(calls, list):
            raise InvalidJson(f"{where}.tool_calls must be a list.", param=f"{where}.tool_calls")
        if said:
            self.items.append(_said("assistant", said))
        for number, one in enumerate(calls):
            self._call(one, f"{where}.tool_calls[{number}]")
        if call is not None:
            self._function_calls += 1
            self._function(f"call_{self._function_calls}", call, f"{where}.function_call")

    def _call(self, call: object, where: str) -> None:
        if not isinstance(call, dict):
            raise InvalidJson(f"{where} must be an object.", param=where)
        call_id = _string(call.get("id"), f"{where}.id")
        if call.get("type") != "custom":
            self._function(call_id, call.get("function"), f"{where}.function")
            return
        custom = call.get("custom")
        if not isinstance(custom, dict):
            raise InvalidJson(f"{where}.custom must be an object.", param=f"{where}.custom")
        self._custom_calls.add(call_id)
        name, given = _string(custom.get("name"), f"{where}.custom.name"), _string(custom.get("input"), f"{where}.custom.input")
        self.items.append({"type": "custom_tool_call", "call_id": call_id, "name": name, "input": given})

    def _function(self, call_id: str, function: object, where: str) -> None:
        if not isinstance(function, dict):
            raise InvalidJson(f"{where} must be an object.", param=where)
        name, arguments = _string(function.get("name"), f"{where}.name"), _string(function.get("arguments"), f"{where}.arguments")
        self.items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})


def _said(role: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def _assistant_parts(message: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, list):
        for number, part in enumerate(content):
            if isinstance(part, dict) and part.get("type") == "refusal":
                yield {"type": "refusal", "refusal": _string(part.get("refusal"), f"{where}.content[{number}].refusal")}
            else:
                yield {"type": "output_text", "text": _text_of(part, f"{where}.content[{number}]")}
    elif content:
        yield {"type": "output_text", "text": _string(content, f"{where}.content")}
    if message.get("refusal"):
        yield {"type": "refusal", "refusal": _string(message["refusal"], f"{where}.refusal")}


def _texts(content: object, where: str) -> list[str]:
    """The texts of a message that has nothing else."""
    if isinstance(content, list):
        return [_text_of(part, f"{where}[{number}]") for number, part in enumerate(content)]
    return [_string(content, where)]


def _text_of(part: object, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise InvalidJson(f"{where} must be a part of the type 'text'.", param=where)
    return _string(part.get("text"), f"{where}.text")


def _parts(content: object, where: str) -> Iterator[dict[str, Any]]:
    """What a person or a tool said, part by part."""
    if isinstance(content, str):
        yield {"type": "input_text", "text": content}
        return
    if not isinstance(content, list):
        raise InvalidJson(f"{where} must be a string or a list of parts.", param=where)
    for number, part in enumerate(content):
        here = f"{where}[{number}]"
        if not isinstance(part, dict):
            raise InvalidJson(f"{here} must be an object.", param=here)
        kind = part.get("type")
        if kind == "image_url":
            yield _image(part.get("image_url"), here)
        elif kind == "file":
            yield _file(part.get("file"), here)
        elif kind == "input_audio":
            raise NotServed("Audio is not served on ChatGPT accounts.", param=here)
        else:
            yield {"type": "input_text", "text": _text_of(part, here)}


def _image(image: object, where: str) -> dict[str, Any]:
    if isinstance(image, str):
        image = {"url": image}
    if not isinstance(image, dict):
        raise InvalidJson(f"{where}.image_url must be an object.", param=f"{where}.image_url")
    url = _string(image.get("url"), f"{where}.image_url.url")
    return {"type": "input_image", "image_url": url, "detail": image.get("detail") or "auto"}


def _file(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidJson(f"{where}.file must be an object.", param=f"{where}.file")
    named = {name: given[name] for name in ("file_id", "filename", "file_data") if given.get(name) is not None}
    return {"type": "input_file", **named}


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidJson(f"{where} must be a string.", param=where)
    return value


# ------------------------------------------------------------------------------------------------------- tools and options


def _tools(tools: object, functions: object) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for name, given in (("tools", tools), ("functions", functions)):
        if given is not None and not isinstance(given, list):
            raise InvalidJson(f"The field {name!r} must be a list.", param=name)
    if tools and functions:
        raise InvalidJson("The fields 'tools' and 'functions' cannot be used together.", param="functions")
    if isinstance(tools, list) and tools:
        made = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    elif isinstance(functions, list):
        made = [_function(function, f"functions[{number}]") for number, function in enumerate(functions)]
    return made


def _tool(tool: object, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(tool, dict) and kind == "function":
        return _function(tool.get("function"), f"{where}.function")
    if isinstance(tool, dict) and kind == "custom":
        return _custom(tool.get("custom"), f"{where}.custom")
    raise NotServed(f"{where} is of a type that is not served here.", param=f"{where}.type")


def _function(function: object, where: str) -> dict[str, Any]:
    if not isinstance(function, dict):
        raise InvalidJson(f"{where} must be an object.", param=where)
    made = {"type": "function", "name": _string(function.get("name"), f"{where}.name")}
    if function.get("description") is not None:
        made["description"] = function["description"]
    parameters = function.get("parameters")
    # Strict unless told otherwise is the rule of Responses, not of Chat Completions.
    return {**made, "parameters": parameters or _NO_PARAMETERS, "strict": function.get("strict") or False}


def _custom(custom: object, where: str) -> dict[str, Any]:
    if not isinstance(custom, dict):
        raise InvalidJson(f"{where} must be an object.", param=where)
    made: dict[str, Any] = {"type": "custom", "name": _string(custom.get("name"), f"{where}.name")}
    if custom.get("description") is not None:
        made["description"] = custom["description"]
    given = custom.get("format")
    if isinstance(given, dict) and isinstance(given.get("grammar"), dict):
        made["format"] = {"type": "grammar", **given["grammar"]}
    elif given is not None:
        made["format"] = given
    return made


def _choice(choice: object, function_call: object) -> object:
    """`tool_choice`, or its forerunner."""
    if choice is None:
        if isinstance(function_call, dict):
            return {"type": "function", "name": _string(function_call.get("name"), "function_call.name")}
        return function_call
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    inner = choice.get(kind) if isinstance(kind, str) else None
    if kind == "allowed_tools" and isinstance(inner, dict) and isinstance(inner.get("tools"), list):
        tools = [_named(tool, f"tool_choice.allowed_tools.tools[{number}]") for number, tool in enumerate(inner["tools"])]
        return {"type": kind, "mode": inner.get("mode") or "auto", "tools": tools}
    return _named(choice, "tool_choice")


def _named(tool: object, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    inner = tool.get(kind) if isinstance(tool, dict) and kind in ("function", "custom") else None
    if not isinstance(inner, dict):
        raise InvalidJson(f"{where} must name a function or a custom tool.", param=where)
    return {"type": kind, "name": _string(inner.get("name"), f"{where}.{kind}.name")}


def _reasoning(found: Fields, effort: str | None) -> dict[str, Any]:
    """`reasoning_effort`; a client that also asks for a summary does it as in Responses, and reads it as `reasoning_content`."""
    made: dict[str, Any] = {}
    given = found.value("reasoning")
    if given is not None and not isinstance(given, dict):
        raise InvalidJson("The field 'reasoning' must be an object.", param="reasoning")
    for name, value in (given or {}).items():
        if name not in ("effort", "summary") and value is not None:
            raise NotServed(f"'reasoning.{name[:40]}' is not served on ChatGPT accounts.", param=f"reasoning.{name[:40]}")
        made[name] = value
    if effort is not None:
        made["effort"] = effort
    return {name: value for name, value in made.items() if value is not None}


def _text_options(response_format: object, verbosity: object) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if response_format is not None:
        made["format"] = _format(response_format)
    if verbosity is not None:
        made["verbosity"] = verbosity
    return made


def _format(given: object) -> dict[str, Any]:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind in ("text", "json_object"):
        return {"type": kind}
    schema = given.get("json_schema") if isinstance(given, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise InvalidJson("The field 'response_format' names no format that is known.", param="response_format")
    named = {name: schema[name] for name in ("name", "description", "schema", "strict") if schema.get(name) is not None}
    return {"type": kind, **named}
