"""What several commands share."""

import click
import pytest

from harken.cli.options import check_token, is_url, perhaps


@pytest.mark.parametrize("url", ["http://localhost", "https://a.example/mcp", "HTTP://[::1]:8766/x?y"])
def test_urls(url: str) -> None:
    assert is_url(url)


@pytest.mark.parametrize(
    "text",
    ["", "localhost:8766", "ftp://a.example", "http://", "http://[", "http:a", "http://a:99999", "./run"],
)
def test_what_is_no_url(text: str) -> None:
    assert not is_url(text)


@pytest.mark.parametrize(
    "text", ["localhost:8766", "localhost/mcp", "127.0.0.1", "[::1]:8766/mcp", "a.example:80"]
)
def test_a_url_without_its_beginning(text: str) -> None:
    assert perhaps(text) == f"; did you mean http://{text}?"


@pytest.mark.parametrize(
    "text", ["", "ftp://a.example", "http:a", "./run", "server.py", "localhosts", "a:99999"]
)
def test_what_is_no_url_without_its_beginning_either(text: str) -> None:
    assert perhaps(text) == ""


@pytest.mark.parametrize("token", ["", "a b", "a\n", "é"])
def test_a_token_fits_into_a_header(token: str) -> None:
    context, parameter = click.Context(click.Command("x")), click.Option(["--token"])
    assert check_token(context, parameter, "a-B_1.~+/=") == "a-B_1.~+/="
    assert check_token(context, parameter, None) is None
    with pytest.raises(click.BadParameter, match="visible ASCII"):
        check_token(context, parameter, token)
