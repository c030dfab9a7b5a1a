"""Parses text, control structures and definitions by the grammar of Go's text/template/parse."""

from typing import Final

from libs.gotemplate.errors import Places, TemplateError
from libs.gotemplate.lexer import Kind, Token
from libs.gotemplate.pipelines import PipelineParser
from libs.gotemplate.quoting import quote, unquote
from libs.gotemplate.runes import encoded
from libs.gotemplate.token_stream import TokenStream
from libs.gotemplate.tree import (
    Action,
    Branch,
    Break,
    Call,
    Continue,
    If,
    Item,
    Items,
    Pipe,
    Range,
    Text,
    With,
    is_blank,
)

ROOT: Final = "\x00"  # the name of the template itself, which {{template}} cannot refer to

_NAMES: Final = (Kind.STRING, Kind.RAW_STRING)


class _Parser:
    """Parses one tree: the template itself or one definition in it."""

    def __init__(self, stream: TokenStream, definitions: dict[str, Items], depth: int) -> None:
        self._stream = stream
        self._pipelines = PipelineParser(stream)
        self._pipelines.depth = depth
        self._definitions = definitions
        self._ranges = 0

    def root(self) -> None:
        """Parse the template itself, up to the end of the source."""
        stream, items = self._stream, list[Item]()
        while stream.peek().kind is not Kind.EOF:
            if stream.peek().kind is Kind.LEFT_DELIMITER:
                delimiter = stream.next()
                keyword = stream.next_visible()
                if keyword.kind is Kind.DEFINE:
                    self._define()
                    continue
                stream.put_back(delimiter, keyword)
            item = self._item()
            if isinstance(item, str):
                stream.fail(f"unexpected {item}")
            items.append(item)
        self._add(ROOT, tuple(items))

    def definition(self, name: str, context: str) -> None:
        """Parse the body of a define or block."""
        self._pipelines.deeper()
        items, end = self._items()
        if end != "{{end}}":
            self._stream.fail(f"unexpected {end} in {context}")
        self._add(name, items)

    def _add(self, name: str, items: Items) -> None:
        known = self._definitions.get(name)
        if known is None or is_blank(known):
            self._definitions[name] = items
        elif not is_blank(items):
            self._stream.fail(f"template: multiple definition of template {quote(encoded(name)).decode()}")

    def _define(self) -> None:
        context = "define clause"
        name = self._name(self._stream.expect(_NAMES, context))
        self._stream.expect((Kind.RIGHT_DELIMITER,), context)
        self._inner().definition(name, context)

    def _inner(self) -> "_Parser":
        return _Parser(self._stream, self._definitions, self._pipelines.depth)

    def _name(self, token: Token) -> str:
        try:
            return unquote(token.text).decode("utf-8", "replace")
        except ValueError as error:
            self._stream.fail(str(error))

    def _items(self) -> tuple[Items, str]:
        """Return the items up to the next end or else, and which of the two it is."""
        items: list[Item] = []
        while self._stream.peek_visible().kind is not Kind.EOF:
            item = self._item()
            if isinstance(item, str):
                return tuple(items), item
            items.append(item)
        return self._stream.fail("unexpected EOF")

    def _item(self) -> Item | str:
        """Return the next text or action; for end and else, the text "{{end}}" or "{{else}}"."""
        token = self._stream.next_visible()
        if token.kind is Kind.TEXT:
            return Text(token.position, encoded(token.text))
        if token.kind is not Kind.LEFT_DELIMITER:
            self._stream.unexpected(token, "input")
        self._stream.action_line = self._stream.line(token)
        try:
            return self._action()
        finally:
            self._stream.action_line = 0

    def _action(self) -> Item | str:
        token = self._stream.next_visible()
        match token.kind:
            case Kind.IF | Kind.WITH:
                return self._if(token.kind)
            case Kind.RANGE:
                return self._range()
            case Kind.BREAK | Kind.CONTINUE:
                return self._leave(token)
            case Kind.TEMPLATE:
                return self._template()
            case Kind.BLOCK:
                return self._block()
            case Kind.ELSE:
                return self._else()
            case Kind.END:
                self._stream.expect((Kind.RIGHT_DELIMITER,), "end")
                return "{{end}}"
        self._stream.put_back(token)
        pipe = self._pipelines.pipeline("command", Kind.RIGHT_DELIMITER)
        return Action(token.position, pipe)

    def _else(self) -> str:
        if self._stream.peek_visible().kind not in (Kind.IF, Kind.WITH):
            self._stream.expect((Kind.RIGHT_DELIMITER,), "else")
        return "{{else}}"

    def _leave(self, token: Token) -> Break | Continue:
        action = f"{{{{{token.text}}}}}"
        following = self._stream.next_visible()
        if following.kind is not Kind.RIGHT_DELIMITER:
            self._stream.unexpected(following, action)
        if self._ranges == 0:
            self._stream.fail(f"{action} outside {{{{range}}}}")
        return Break(token.position) if token.kind is Kind.BREAK else Continue(token.position)

    def _if(self, keyword: Kind) -> If | With:
        """Parse an if or with; an `else if` is a branch that sees the variables of earlier branches."""
        scope = len(self._pipelines.variables)
        self._pipelines.deeper()
        branches: list[Branch] = []
        otherwise: Items = ()
        while True:
            pipe = self._pipelines.pipeline(keyword.value, Kind.RIGHT_DELIMITER)
            body, end = self._items()
            branches.append(Branch(pipe, body))
            if end == "{{end}}":
                break
            if self._stream.peek().kind is not keyword:
                otherwise = self._last()
                break
            self._stream.next()
        self._leave_block(scope)
        position = branches[0].pipe.position
        kind = If if keyword is Kind.IF else With
        return kind(position, tuple(branches), otherwise)

    def _range(self) -> Range:
        scope = len(self._pipelines.variables)
        self._pipelines.deeper()
        pipe = self._pipelines.pipeline("range", Kind.RIGHT_DELIMITER)
        self._ranges += 1
        body, end = self._items()
        self._ranges -= 1
        otherwise = self._last() if end == "{{else}}" else ()
        self._leave_block(scope)
        return Range(pipe.position, pipe, body, otherwise)

    def _leave_block(self, scope: int) -> None:
        del self._pipelines.variables[scope:]
        self._pipelines.depth -= 1

    def _last(self) -> Items:
        """Return the items after the last else."""
        items, end = self._items()
        if end != "{{end}}":
            self._stream.fail(f"expected end; found {end}")
        return items

    def _template(self) -> Call:
        context = "template clause"
        token = self._stream.expect(_NAMES, context)
        name = self._name(token)
        following = self._stream.next_visible()
        pipe: Pipe | None = None
        if following.kind is not Kind.RIGHT_DELIMITER:
            self._stream.put_back(following)
            pipe = self._pipelines.pipeline(context, Kind.RIGHT_DELIMITER)
        return Call(token.position, quote(encoded(name)).decode(), name, pipe)

    def _block(self) -> Call:
        context = "block clause"
        token = self._stream.expect(_NAMES, context)
        name = self._name(token)
        pipe = self._pipelines.pipeline(context, Kind.RIGHT_DELIMITER)
        self._inner().definition(name, context)
        return Call(token.position, quote(encoded(name)).decode(), name, pipe)


def parse_source(source: str, places: Places) -> dict[str, Items]:
    """Return the template under ROOT, and its definitions. Raises TemplateError where Go's parser fails."""
    definitions: dict[str, Items] = {}
    try:
        _Parser(TokenStream(source, places), definitions, 0).root()
    except RecursionError as error:  # the caller's stack was nearly full
        raise TemplateError("bound", (1, 0), "is nested too deeply for the stack") from error
    return definitions
