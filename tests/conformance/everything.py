"""The server that the official conformance suite wants to see: the Python SDK's, with all that it asks for.

    python -m tests.conformance.everything bare      the SDK alone: the control
    python -m tests.conformance.everything around    the same server with `hub.asgi(app)` around it

Around it the SDK's own `subscriptions/listen` is off: what is listened to is ours, and so is what is
published. The first line on stderr is the URL; SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import base64
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    Completion,
    CompletionArgument,
    CompletionContext,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    ImageContent,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import Field

from harken.core.events import Event, PromptsListChanged, ToolsListChanged
from harken.server.hub import Hub

Publish = Callable[[Event], Awaitable[None]]
ASGIApp = Callable[..., Awaitable[None]]

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
AUDIO = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="

# Every keyword of JSON Schema 2020-12 that must survive `tools/list`.
SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def build(publish: Publish | None) -> MCPServer:
    """The server; what changes goes to `publish`, or to the SDK's own listen streams where that is None."""
    server = MCPServer(
        name="everything",
        version="1.0.0",
        log_level="CRITICAL",  # one of the tools fails on purpose
        subscriptions=None if publish is None else False,
    )
    add_contents(server)
    add_behaviour(server)
    add_triggers(server, publish)
    add_input_required(server)
    add_resources(server)
    add_prompts(server)
    add_completion(server)
    return server


def text_resource(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(
        type="resource", resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    )


def add_contents(server: MCPServer) -> None:
    """Tools that answer with each kind of content."""

    @server.tool()
    def test_simple_text() -> str:
        """Answers with text."""
        return "This is a simple text response for testing."

    @server.tool()
    def test_image_content() -> list[ImageContent]:
        """Answers with an image."""
        return [ImageContent(type="image", data=IMAGE, mime_type="image/png")]

    @server.tool()
    def test_audio_content() -> list[AudioContent]:
        """Answers with a sound."""
        return [AudioContent(type="audio", data=AUDIO, mime_type="audio/wav")]

    @server.tool()
    def test_embedded_resource() -> list[EmbeddedResource]:
        """Answers with a resource."""
        return [text_resource("test://embedded-resource", "This is an embedded resource content.")]

    @server.tool()
    def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
        """Answers with three kinds at once."""
        return [
            TextContent(type="text", text="Multiple content types test:"),
            ImageContent(type="image", data=IMAGE, mime_type="image/png"),
            text_resource("test://mixed-content-resource", '{"test": "data"}', "application/json"),
        ]

    @server.tool()
    def test_error_handling() -> str:
        """Fails."""
        raise RuntimeError("This tool intentionally returns an error for testing")


def add_behaviour(server: MCPServer) -> None:
    """Tools that do more than answer: progress, logs, capabilities, headers, schemas."""

    @server.tool()
    async def test_tool_with_progress(ctx: Context[Any, Any]) -> str:
        """Reports its progress."""
        for step in (0, 50, 100):
            await ctx.report_progress(step, 100, f"Completed step {step} of 100")
        return "done"

    @server.tool()
    async def test_logging_tool(ctx: Context[Any, Any]) -> str:
        """Logs."""
        await ctx.log("info", "a log message for who asked for it")
        return "logged"

    @server.tool()
    async def test_missing_capability(ctx: Context[Any, Any]) -> str:
        """Needs a client that can sample."""
        capabilities = ctx.client_capabilities
        if capabilities is None or capabilities.sampling is None:
            raise MCPError(
                code=MISSING_REQUIRED_CLIENT_CAPABILITY,
                message="this tool needs the client's capability 'sampling'",
                data={"requiredCapabilities": {"sampling": {}}},
            )
        return "the client can sample"

    @server.tool()
    async def test_streaming_elicitation(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Asks its user for a name, on a stream where the client takes one."""
        if ctx.input_responses:
            return "thank you"
        return InputRequiredResult(input_requests={"user_name": ask_name()})

    @server.tool()
    def test_x_mcp_header(
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "<none>",
    ) -> str:
        """Takes a parameter that is repeated in a header."""
        return f"region={region}"

    @server.tool()
    def json_schema_2020_12_tool() -> str:
        """Has a schema of every keyword."""
        return "ok"

    # The SDK derives a schema from the function and has no public way to give another.
    server._tool_manager._tools["json_schema_2020_12_tool"].parameters = SCHEMA_2020_12


def add_triggers(server: MCPServer, publish: Publish | None) -> None:
    """The tools that change a list and tell of it."""

    @server.tool()
    async def test_trigger_tool_change(ctx: Context[Any, Any]) -> str:
        """Changes the list of tools."""
        server.add_tool(_changing, name="test_dynamic_tool")
        server.remove_tool("test_dynamic_tool")
        await (ctx.notify_tools_changed() if publish is None else publish(ToolsListChanged()))
        return "the tools changed"

    @server.tool()
    async def test_trigger_prompt_change(ctx: Context[Any, Any]) -> str:
        """Changes the list of prompts."""
        server.add_prompt(Prompt.from_function(_changing, name="test_dynamic_prompt"))
        server.remove_prompt("test_dynamic_prompt")
        await (ctx.notify_prompts_changed() if publish is None else publish(PromptsListChanged()))
        return "the prompts changed"


def _changing() -> str:
    """Comes and goes."""
    return "here today"


def ask(message: str, field: str, kind: str = "string") -> ElicitRequest:
    schema: dict[str, Any] = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def ask_name(message: str = "What is your name?") -> ElicitRequest:
    return ask(message, "name")


def sample(text: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=100))


def elicited(answer: object, field: str) -> object:
    """The field of an accepted elicitation."""
    return answer.content.get(field) if isinstance(answer, ElicitResult) and answer.content else None


def add_input_required(server: MCPServer) -> None:
    """Tools that need the client's input first."""

    @server.tool()
    async def test_input_required_result_elicitation(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Asks for a name."""
        if answer := (ctx.input_responses or {}).get("user_name"):
            return f"Hello, {elicited(answer, 'name')}!"
        return InputRequiredResult(input_requests={"user_name": ask_name()})

    @server.tool()
    async def test_input_required_result_sampling(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Asks the client's model."""
        answer = (ctx.input_responses or {}).get("capital_question")
        if isinstance(answer, CreateMessageResult) and isinstance(answer.content, TextContent):
            return f"Model said: {answer.content.text}"
        return InputRequiredResult(
            input_requests={"capital_question": sample("What is the capital of France?")}
        )

    @server.tool()
    async def test_input_required_result_list_roots(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Asks for the client's roots."""
        answer = (ctx.input_responses or {}).get("client_roots")
        if isinstance(answer, ListRootsResult):
            return f"Client exposed {len(answer.roots)} root(s)."
        return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})

    @server.tool()
    async def test_input_required_result_request_state(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Wants its state back."""
        if "confirm" in (ctx.input_responses or {}) and ctx.request_state == "a-nonce":
            return "state-ok: confirmation received"
        return InputRequiredResult(
            input_requests={"confirm": ask("Please confirm", "ok", "boolean")}, request_state="a-nonce"
        )

    @server.tool()
    async def test_input_required_result_multiple_inputs(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Asks for three things at once."""
        if {"user_name", "greeting", "client_roots"} <= (ctx.input_responses or {}).keys():
            return "All inputs received."
        return InputRequiredResult(
            input_requests={
                "user_name": ask_name(),
                "greeting": sample("Generate a greeting"),
                "client_roots": ListRootsRequest(),
            },
            request_state="multiple-inputs",
        )

    @server.tool()
    async def test_input_required_result_multi_round(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Asks twice."""
        state = json.loads(ctx.request_state) if ctx.request_state else {"round": 0}
        answers = ctx.input_responses or {}
        if state["round"] == 1 and "step1" in answers:
            return InputRequiredResult(
                input_requests={"step2": ask("Step 2: What is your favorite color?", "color")},
                request_state=json.dumps({"round": 2, "name": elicited(answers["step1"], "name")}),
            )
        if state["round"] == 2 and "step2" in answers:
            return f"{state['name']} likes {elicited(answers['step2'], 'color')}."
        return InputRequiredResult(
            input_requests={"step1": ask_name("Step 1: What is your name?")},
            request_state=json.dumps({"round": 1}),
        )

    @server.tool()
    async def test_input_required_result_tampered_state(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Takes no state but its own."""
        if ctx.request_state is not None:  # the SDK has checked it already
            return f"state-ok: {ctx.request_state}"
        return InputRequiredResult(
            input_requests={"confirm": ask("Please confirm", "ok", "boolean")}, request_state="round-1"
        )

    @server.tool()
    async def test_input_required_result_capabilities(ctx: Context[Any, Any]) -> InputRequiredResult:
        """Asks only for what the client can do."""
        can = ctx.client_capabilities
        requests: dict[str, InputRequest] = {}
        if can is not None and can.sampling is not None:
            requests["sample"] = sample("Say hello")
        if can is not None and can.elicitation is not None:
            requests["ask"] = ask_name()
        return InputRequiredResult(input_requests=requests, request_state="capability-gated")


def add_resources(server: MCPServer) -> None:
    """A text, a binary, and a template."""

    @server.resource("test://static-text")
    def static_text() -> str:
        """A text."""
        return "This is the content of the static text resource."

    @server.resource("test://static-binary")
    def static_binary() -> bytes:
        """An image."""
        return base64.b64decode(IMAGE)

    @server.resource("test://template/{id}/data")
    def template(id: str) -> str:
        """Anything by its id."""
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def says(content: TextContent | ImageContent | EmbeddedResource | str) -> UserMessage:
    return UserMessage(
        content=TextContent(type="text", text=content) if isinstance(content, str) else content
    )


def add_prompts(server: MCPServer) -> None:
    """Prompts of each kind."""

    @server.prompt()
    def test_simple_prompt() -> list[UserMessage]:
        """A prompt."""
        return [says("This is a simple prompt for testing.")]

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
        """A prompt with two arguments."""
        return [says(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")]

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803  # the suite's word
        """A prompt about a resource."""
        return [says(text_resource(resourceUri, "Embedded.")), says("Please process the resource above.")]

    @server.prompt()
    def test_prompt_with_image() -> list[UserMessage]:
        """A prompt about an image."""
        return [
            says(ImageContent(type="image", data=IMAGE, mime_type="image/png")),
            says("Please analyze the image above."),
        ]

    @server.prompt()
    async def test_input_required_result_prompt(
        ctx: Context[Any, Any],
    ) -> list[UserMessage] | InputRequiredResult:
        """A prompt that asks first."""
        if answer := (ctx.input_responses or {}).get("user_context"):
            return [says(f"Use the following context: {elicited(answer, 'context')}")]
        return InputRequiredResult(
            input_requests={"user_context": ask("What context should the prompt use?", "context")}
        )


def add_completion(server: MCPServer) -> None:
    """Completion, of nothing."""

    @server.completion()  # type: ignore[no-untyped-call, untyped-decorator]  # the SDK leaves it untyped
    async def complete(
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        return Completion(values=[], total=0, has_more=False)


def bare() -> ASGIApp:
    """The SDK's server alone."""
    return build(None).streamable_http_app()


def around() -> ASGIApp:
    """The SDK's server, listened to through a hub."""
    hub = Hub(name="everything", version="1.0.0")
    return hub.asgi(build(hub.publish).streamable_http_app())


def main() -> None:
    """Serve on a free port of this machine alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("bare", "around"))
    parser.add_argument("--http", choices=("h11", "httptools"), default="h11")
    arguments = parser.parse_args()
    app = around() if arguments.way == "around" else bare()
    listener = socket.create_server(("127.0.0.1", 0))
    # By this name, since the suite's scenario about DNS rebinding looks for it.
    print(f"http://localhost:{listener.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, http=arguments.http, log_level="error")).run([listener])


if __name__ == "__main__":
    main()
