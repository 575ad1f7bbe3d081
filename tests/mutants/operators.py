"""Standard mutation operators over C++ functions. A copy of a source file holds all mutants of the chosen functions; the
environment variable OCTET_MUTANT selects one of them when the program runs."""

import importlib
import re
import subprocess
import sys
from dataclasses import dataclass

from defects import HERE, SOURCE, Trouble

LIBCLANG = SOURCE / ".deps/libclang-18.1.1"

# Functions that a mutated line calls. Number 0 is the unchanged program.
PROLOGUE = """#include <cstdlib>
namespace {
const int octet_mutant_chosen = [] { const char* s = std::getenv("OCTET_MUTANT"); return s == nullptr ? 0 : std::atoi(s); }();
[[maybe_unused]] inline bool octet_mutant(int n) { return n == octet_mutant_chosen; }
}
"""

BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
OPPOSITES = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "+=": "-=",
              "-=": "+=", "*=": "/=", "/=": "*="}
LOGIC = {"&&": "||", "||": "&&"}
SYMMETRIC = {"min", "max", "swap", "gcd", "lcm", "hypot"}   # functions whose arguments may change places
UNTOUCHED = re.compile(r"(throw|check\s*\()")              # messages of errors, assertions of the program's own rules


def cindex():
    """Returns libclang's module. pip installs it into .deps once; the hash of the wheel is checked."""
    if not LIBCLANG.is_dir():
        fresh = LIBCLANG.with_name(LIBCLANG.name + ".part")
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                               "--only-binary=:all:", "--require-hashes", "--upgrade", "--target", fresh, "-r",
                               HERE / "requirements.txt"], capture_output=True, text=True)
        if done.returncode != 0:
            raise Trouble(f"pip cannot install libclang (tests/mutants/requirements.txt):\n{done.stderr[-1000:]}")
        fresh.rename(LIBCLANG)
    if str(LIBCLANG) not in sys.path:
        sys.path.insert(0, str(LIBCLANG))
    return importlib.import_module("clang.cindex")


@dataclass
class Mutant:
    """One change at the characters [begin, end) of a file. `drop` marks a statement that is left out."""
    function: str
    operator: str
    begin: int
    end: int
    new: str
    drop: bool = False
    number: int = 0
    nth: int = 0        # among mutants of the same operator in the function

    @property
    def name(self):
        return f"{self.function} {self.operator} {self.nth}"


class File:
    """A source file, its chosen functions and their mutants."""

    def __init__(self, path, arguments, functions):
        self.path, self.text = path, path.read_bytes().decode("latin-1")
        self.code = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), self.text, flags=re.S)
        self.clang = cindex()
        self.kinds, self.types = self.clang.CursorKind, self.clang.TypeKind
        unit = self.clang.Index.create().parse(str(path), args=arguments, options=self.clang.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD)
        wrong = [d for d in unit.diagnostics if d.severity >= 3 and d.location.file and d.location.file.name == str(path)]
        if wrong:
            raise Trouble(f"libclang cannot parse {path}: {wrong[0].spelling}, line {wrong[0].location.line}")
        self.macros = [self.range(c) for c in unit.cursor.get_children()
                       if c.kind == self.kinds.MACRO_INSTANTIATION and self.is_here(c)]
        self.mutants, found = [], set()
        for cursor in self.definitions(unit.cursor):
            name = cursor.spelling.split("<")[0]
            if name in functions:
                found.add(name)
                body = next(c for c in cursor.get_children() if c.kind == self.kinds.COMPOUND_STMT)
                if "constexpr" not in self.code[cursor.extent.start.offset:body.extent.start.offset]:
                    self.function = name
                    self.statement(body)
        if missing := set(functions) - found:
            raise Trouble(f"{path.relative_to(SOURCE) if path.is_relative_to(SOURCE) else path} has no function "
                          f"{', '.join(sorted(missing))}; correct functions.toml")
        self.number()

    def number(self, first=1):
        """Numbers the mutants from `first` and names them. Returns the next number."""
        self.mutants.sort(key=lambda m: (m.begin, -m.end, m.operator, m.new))
        counts = {}
        for mutant in self.mutants:
            key = mutant.function, mutant.operator
            mutant.nth = counts[key] = counts.get(key, 0) + 1
            mutant.number, first = first, first + 1
        return first

    def definitions(self, cursor):
        k = self.kinds
        for c in cursor.get_children():
            if not self.is_here(c):
                continue
            if c.kind in (k.FUNCTION_DECL, k.CXX_METHOD, k.CONSTRUCTOR, k.DESTRUCTOR, k.FUNCTION_TEMPLATE, k.CONVERSION_FUNCTION):
                if any(b.kind == k.COMPOUND_STMT for b in c.get_children()):
                    yield c
            elif c.kind in (k.NAMESPACE, k.CLASS_DECL, k.STRUCT_DECL, k.CLASS_TEMPLATE, k.LINKAGE_SPEC, k.UNEXPOSED_DECL):
                yield from self.definitions(c)

    def is_here(self, cursor):
        return cursor.extent.start.file is not None and cursor.extent.start.file.name == str(self.path)

    @staticmethod
    def range(cursor):
        return cursor.extent.start.offset, cursor.extent.end.offset

    def source(self, begin, end):
        """The code of a range on one line, without comments."""
        return " ".join(self.code[begin:end].split("\n"))

    def add(self, operator, begin, end, new, drop=False):
        inside_macro = any(b < end and begin < e and not (begin < b and e < end) for b, e in self.macros)
        if not inside_macro:
            self.mutants.append(Mutant(self.function, operator, begin, end, new, drop))

    # Statements.

    def statement(self, c):
        """Visits a statement and what it contains."""
        k = self.kinds
        children = list(c.get_children())
        if c.kind == k.COMPOUND_STMT:
            for child in children:
                self.droppable(child)
        elif c.kind == k.IF_STMT:
            constant = re.match(r"if\s+constexpr\b", self.code[c.extent.start.offset:])
            if not constant:
                self.condition(children)
            for x in children:
                if self.is_body(x, c):
                    self.droppable(x)
                elif not constant:
                    self.statement(x)
        elif c.kind in (k.FOR_STMT, k.WHILE_STMT, k.DO_STMT, k.CXX_FOR_RANGE_STMT):
            for x in children:
                if self.is_body(x, c):
                    self.droppable(x)
                elif c.kind == k.CXX_FOR_RANGE_STMT:
                    if x.kind.is_expression():
                        self.expression(x)
                elif not self.follows_pragma(c):
                    self.statement(x)
        elif c.kind == k.DECL_STMT:
            if not re.match(r"(static\s+)?constexpr\b|static\b", self.code[c.extent.start.offset:]):
                for x in children:
                    self.variable(x)
        elif c.kind == k.RETURN_STMT:
            for x in children:
                self.returned(x)
                self.expression(x)
        elif c.kind in (k.CASE_STMT, k.DEFAULT_STMT):
            self.droppable(children[-1])
        elif c.kind.is_statement():
            for x in children:
                self.statement(x)
        elif c.kind.is_expression():
            self.expression(c)

    def is_body(self, x, c):
        """Whether a child of an `if` or a loop is a statement of its own: a brace, or the end of an expression at a semicolon."""
        begin, end = self.range(x)
        if x.kind == self.kinds.COMPOUND_STMT:
            return True
        before = self.code[c.extent.start.offset:begin].rstrip()
        depth = before.count("(") - before.count(")")
        return depth == 0 and bool(before)

    def follows_pragma(self, c):
        """Whether OpenMP prescribes the form of a loop's head."""
        lines = self.code[:c.extent.start.offset].rstrip().split("\n")
        return lines[-1].lstrip().startswith("#pragma")

    def droppable(self, c):
        k, (begin, end) = self.kinds, self.range(c)
        leaves = c.kind in (k.BREAK_STMT, k.CONTINUE_STMT) or (c.kind == k.RETURN_STMT and not list(c.get_children()))
        untouched = UNTOUCHED.match(self.code, begin)
        idle = c.kind in (k.CSTYLE_CAST_EXPR, k.CXX_STATIC_CAST_EXPR) or self.code.startswith("check", begin)
        if (c.kind.is_expression() or leaves) and not idle:
            after = re.match(r"\s*;", self.code[end:])
            if after:
                self.add("drop", begin, end + after.end(), "", drop=True)
        if not untouched:
            self.statement(c)

    def condition(self, children):
        """Negates the condition of an `if`, unless changing its comparison does the same."""
        for x in children:
            begin, end = self.range(x)
            if x.kind.is_expression() and re.match(r"\s*\)", self.code[end:]):
                if self.operator_of(self.bare(x)) not in OPPOSITES:
                    self.add("negate", begin, end, f"!({self.source(begin, end)})")
                return

    def variable(self, c):
        children = list(c.get_children())
        if c.kind == self.kinds.VAR_DECL and children and c.type.get_canonical().kind != self.types.CONSTANTARRAY:
            if children[-1].kind.is_expression() and children[-1].extent.start.offset >= c.location.offset:
                self.expression(children[-1], declared=c)

    def returned(self, x):
        begin, end = self.range(x)
        if self.is_integer(x.type) and self.bare(x).kind != self.kinds.INTEGER_LITERAL:
            self.add("off_by_one", begin, end, f"({self.source(begin, end)}) + 1")

    # Expressions.

    def bare(self, c):
        """The expression without parentheses and implicit conversions."""
        while c.kind in (self.kinds.UNEXPOSED_EXPR, self.kinds.PAREN_EXPR):
            children = list(c.get_children())
            if len(children) != 1:
                return c
            c = children[0]
        return c

    def is_integer(self, type_):
        t, kinds = type_.get_canonical(), self.types
        if t.kind in (kinds.LVALUEREFERENCE, kinds.RVALUEREFERENCE):
            t = t.get_pointee().get_canonical()
        return t.kind in (kinds.SHORT, kinds.INT, kinds.LONG, kinds.LONGLONG, kinds.USHORT, kinds.UINT, kinds.ULONG, kinds.ULONGLONG)

    def is_float(self, type_):
        return type_.get_canonical().kind in (self.types.FLOAT, self.types.DOUBLE, self.types.DEPENDENT)

    def operator_of(self, c):
        """The operator of a binary expression as it is written, or an empty text."""
        if c.kind not in (self.kinds.BINARY_OPERATOR, self.kinds.COMPOUND_ASSIGNMENT_OPERATOR):
            return ""
        children = list(c.get_children())
        if len(children) != 2:
            return ""
        return self.code[children[0].extent.end.offset:children[1].extent.start.offset].strip()

    def expression(self, c, declared=None):
        k, (begin, end) = self.kinds, self.range(c)
        children = list(c.get_children())
        if UNTOUCHED.match(self.code, begin) or c.kind in (k.DECL_REF_EXPR, k.STRING_LITERAL):
            return
        if c.kind == k.MEMBER_REF_EXPR:
            children = children[:1]
        if c.kind == k.LAMBDA_EXPR:
            for x in children:
                if x.kind == k.COMPOUND_STMT and "constexpr" not in self.code[begin:x.extent.start.offset]:
                    self.statement(x)
            return
        if operator := self.operator_of(c):
            self.binary(operator, begin, end, *children)
        elif c.kind in (k.INTEGER_LITERAL, k.FLOATING_LITERAL):
            text = self.source(begin, end)
            self.add("constant", begin, end, f"({text} + 1)")
        elif c.kind == k.CONDITIONAL_OPERATOR and len(children) == 3:
            a, b = self.range(children[0])
            if self.operator_of(self.bare(children[0])) not in OPPOSITES:
                self.add("negate", a, b, f"!({self.source(a, b)})")
        elif c.kind == k.ARRAY_SUBSCRIPT_EXPR and len(children) == 2:
            a, b = self.range(children[1])
            if self.bare(children[1]).kind != k.INTEGER_LITERAL:
                self.add("off_by_one", a, b, f"({self.source(a, b)}) + 1")
        elif c.kind == k.CALL_EXPR:
            self.swap(c, declared)
        for x in children:
            if x.kind.is_expression():
                self.expression(x)
            elif x.kind.is_statement():
                self.statement(x)

    def binary(self, operator, begin, end, left, right):
        a, b = self.source(*self.range(left)), self.source(*self.range(right))
        pointers = [x.type.get_canonical().kind == self.types.POINTER for x in (left, right)]
        if operator in BOUNDS:
            floats = self.is_float(left.type) or self.is_float(right.type)
            self.add("compare", begin, end, f"{a} {(OPPOSITES if floats else BOUNDS)[operator]} {b}")
        elif operator in LOGIC:
            self.add("logic", begin, end, f"({a}) {LOGIC[operator]} ({b})")
        elif operator in ARITHMETIC and not all(pointers):
            self.add("arithmetic", begin, end, f"{a} {ARITHMETIC[operator]} {b}")

    def swap(self, c, declared):
        """Swaps the first two adjacent arguments of one type."""
        begin, end = self.range(c)
        if c.spelling in SYMMETRIC:
            return
        arguments = [a for a in c.get_arguments() if a is not None and begin < a.extent.start.offset and a.extent.end.offset < end]
        if len(arguments) < 2 or not self.code[:arguments[0].extent.start.offset].rstrip().endswith("("):
            return
        if declared is not None and begin == declared.location.offset:
            return
        plain = [re.sub(r"\bconst\b|&|\s", "", a.type.get_canonical().spelling) for a in arguments]
        for i in range(len(arguments) - 1):
            (a, b), (x, y) = self.range(arguments[i]), self.range(arguments[i + 1])
            if plain[i] == plain[i + 1] and plain[i] and self.code[a:b] != self.code[x:y]:
                self.add("swap", begin, end, self.source(begin, a) + self.source(x, y) + self.source(b, x) + self.source(a, b) + self.source(y, end))
                return

    # The copy.

    def instrumented(self):
        """Returns the text of the file with all mutants. Line numbers stay."""
        return PROLOGUE + f'#line 1 "{self.path}"\n' + self.render(0, len(self.text), self.mutants)

    def render(self, begin, end, mutants):
        """Returns the text of a range with mutants that lie in it, which are sorted by position and outer ones first."""
        out, at, i = [], begin, 0
        while i < len(mutants):
            first = mutants[i]
            j = i
            while j < len(mutants) and mutants[j].begin < first.end:
                j += 1
            same = [m for m in mutants[i:j] if (m.begin, m.end) == (first.begin, first.end)]
            inner = [m for m in mutants[i:j] if m not in same]
            out.append(self.text[at:first.begin])
            text = self.render(first.begin, first.end, inner)
            for m in same:
                text = f"{{ if (!octet_mutant({m.number})) {{ {text} }} }}" if m.drop else f"(octet_mutant({m.number}) ? ({m.new}) : ({text}))"
            out.append(text)
            at, i = first.end, j
        return "".join(out) + self.text[at:end]

    def lines(self, mutant):
        return self.text.count("\n", 0, mutant.begin) + 1, self.text.count("\n", 0, mutant.end) + 1

    def drop_lines(self, lines):
        """Removes the mutants that a compiler refuses: of each line the smallest that cover it. Returns whether any was removed."""
        gone = set()
        for line in lines:
            cover = [m for m in self.mutants if self.lines(m)[0] <= line <= self.lines(m)[1]]
            least = min((self.lines(m)[1] - self.lines(m)[0] for m in cover), default=0)
            gone |= {id(m) for m in cover if self.lines(m)[1] - self.lines(m)[0] == least}
        self.mutants = [m for m in self.mutants if id(m) not in gone]
        return bool(gone)
