"""Parses text, control structures and definitions by the grammar of Go's text/template/parse."""

from typing import Final

from libs.gotemplate.errors import Places, TemplateError
from libs.gotemplate.lexer import Token
from libs.gotemplate.pipelines import PipelineParser, TokenStream
from libs.gotemplate.quoting import quote_text
from libs.gotemplate.runes import encoded, valid
from libs.gotemplate.tree import Action, Block, Branch, Call, Item, Items, Leave, Text, is_blank

ROOT: Final = "\x00"  # the name of the template itself, which {{template}} cannot refer to


class _Parser:
    """Parses one tree: the template itself or one definition in it."""

    def __init__(self, stream: TokenStream, definitions: dict[str, Items], depth: int) -> None:
        self._stream = stream
        self._pipelines = PipelineParser(stream, depth)
        self._definitions = definitions
        self._ranges = 0

    def root(self) -> None:
        """Parse the template itself, up to the end of the source."""
        stream, items = self._stream, list[Item]()
        while stream.peek().kind != "EOF":
            token = stream.peek()
            if token.kind == "{{" and stream.peek(1).kind == "define":
                self._define()
                continue
            item = self._item()
            if isinstance(item, str):
                stream.fail(f"unexpected {{{{{item}}}}}", token)
            items.append(item)
        self._add(ROOT, tuple(items), stream.peek())

    def definition(self, token: Token, context: str) -> None:
        """Parse the body of a define or block with the name in the token."""
        name = valid(self._stream.string(token))
        self._pipelines.deeper()
        items, end = self._items()
        if end != "end":
            self._stream.fail(f"unexpected {{{{{end}}}}} in {context}", token)
        self._add(name, items, token)

    def _add(self, name: str, items: Items, token: Token) -> None:
        known = self._definitions.get(name)
        if known is None or is_blank(known):
            self._definitions[name] = items
        elif not is_blank(items):
            self._stream.fail(f"template: multiple definition of template {quote_text(name)}", token)

    def _define(self) -> None:
        self._stream.next()
        self._stream.next()
        name = self._stream.expect("string", "define clause")
        self._stream.expect("}}", "define clause")
        self._inner().definition(name, "define clause")

    def _inner(self) -> "_Parser":
        return _Parser(self._stream, self._definitions, self._pipelines.depth)

    def _items(self) -> tuple[Items, str]:
        """Return the items up to the next `end` or `else`, and which of the two it is."""
        items: list[Item] = []
        while self._stream.peek().kind != "EOF":
            item = self._item()
            if isinstance(item, str):
                return tuple(items), item
            items.append(item)
        return self._stream.fail("unexpected EOF", self._stream.peek())

    def _item(self) -> Item | str:
        """Return the next text or action; for end and else, the keyword."""
        token = self._stream.next()
        if token.kind == "text":
            return Text(token.start, token.end, encoded(token.text))
        if token.kind != "{{":
            self._stream.unexpected(token, "input")
        keyword = self._stream.peek()
        match keyword.kind:
            case "if" | "with" | "range":
                return self._block(self._stream.next())
            case "else" | "end":
                return self._end(self._stream.next().kind)
            case "break" | "continue":
                return self._leave(self._stream.next())
            case "template" | "block":
                return self._call(self._stream.next().kind)
        pipe = self._pipelines.pipeline("command", "}}")
        return Action(pipe.start, pipe.end, pipe)

    def _end(self, keyword: str) -> str:
        # `else if` and `else with` stay in the stream for their block
        if keyword == "end" or self._stream.peek().kind not in ("if", "with"):
            self._stream.expect("}}", keyword)
        return keyword

    def _leave(self, token: Token) -> Leave:
        action = f"{{{{{token.text}}}}}"
        self._stream.expect("}}", action)
        if self._ranges == 0:
            self._stream.fail(f"{action} outside {{{{range}}}}", token)
        return Leave(token.start, token.end, token.kind)

    def _block(self, token: Token) -> Block:
        """Parse an if, with or range; an `else if` sees the variables of earlier branches."""
        scope = len(self._pipelines.variables)
        self._pipelines.deeper()
        branches: list[Branch] = []
        otherwise: Items = ()
        end = "else"
        while end == "else":
            pipe = self._pipelines.pipeline(token.kind, "}}")
            self._ranges += token.kind == "range"
            body, end = self._items()
            self._ranges -= token.kind == "range"
            branches.append(Branch(pipe, body))
            if end == "else" and not self._stream.skip(token.kind):
                otherwise, end = self._items()
                if end == "else":
                    self._stream.fail("expected end; found {{else}}", token)
        del self._pipelines.variables[scope:]
        self._pipelines.depth -= 1
        return Block(token.start, token.end, token.kind, tuple(branches), otherwise)

    def _call(self, keyword: str) -> Call:
        """Parse a template or block clause; a block also defines the template that it calls."""
        context = f"{keyword} clause"
        token = self._stream.expect("string", context)
        pipe = None
        if keyword == "block" or not self._stream.skip("}}"):
            pipe = self._pipelines.pipeline(context, "}}")
        if keyword == "block":
            self._inner().definition(token, context)
        return Call(token.start, token.end, valid(self._stream.string(token)), pipe)


def parse_source(source: str, places: Places) -> dict[str, Items]:
    """Return the template under ROOT, and its definitions. Raises TemplateError."""
    definitions: dict[str, Items] = {}
    try:
        _Parser(TokenStream(source, places), definitions, 0).root()
    except RecursionError as error:  # the caller's stack was nearly full
        raise TemplateError("bound", (1, 0), "is nested too deeply for the stack") from error
    return definitions
