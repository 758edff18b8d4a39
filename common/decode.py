"""A kernel name -> its parts in words, each documented or inferred, and what of it stays unexplained."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

from common import names
from common.events import GPU, Trace, printable
from common.parts import FORMS
from common.vocabulary import Form, Rule

LONGEST = 2000  # of a name, in characters: what tells stands early


@dataclass(frozen=True)
class Part:
    """One part of a name. Without a source it is inferred."""

    field: str
    text: str  # as it stands in the name
    says: str
    source: str


@dataclass(frozen=True)
class Decoded:
    """A name in parts."""

    name: str
    family: str
    origin: str
    form: str  # the kind of name, "" where no rule knows it
    parts: list[Part]
    rest: list[str]  # what no rule explains; of a template, the fields that were not found
    whole: bool  # nothing is left


def decode(name: str) -> Decoded:
    """Any string has an answer; one that no form knows has no parts."""
    family, origin = names.classify(name)
    name = printable(name)
    text = name[:LONGEST].replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    for form, when, rules in _compiled():
        match = when.search(text)
        if match is None:
            continue
        body = match[1] if match.lastindex else text[match.end() :]
        if not form.needs:
            parts, rest = _scan(body, rules)
            return Decoded(name, family, origin, form.name, parts, rest, not rest)
        parts = _find(body, rules)
        missing = [field for field in form.needs if field not in {part.field for part in parts}]
        return Decoded(name, family, origin, form.name, parts, missing, not missing)
    return Decoded(name, family, origin, "", [], [], False)


def calls(traces: list[Trace]) -> dict[str, int]:
    """The distinct kernel names of some traces, and how many GPU events bear each."""
    return dict(Counter(event.name for trace in traces for event in trace.of(GPU)))


def difference(a: Decoded, b: Decoded) -> list[tuple[str, list[Part], list[Part]]]:
    """(field, parts of a, parts of b) of each field in which the two names differ, in the order of the names."""
    found = []
    for field in dict.fromkeys(part.field for part in [*a.parts, *b.parts]):
        x, y = ([part for part in one.parts if part.field == field] for one in (a, b))
        if [part.text for part in x] != [part.text for part in y]:
            found.append((field, x, y))
    return found


Rules = list[tuple[re.Pattern, Rule]]


@cache
def _compiled() -> list[tuple[Form, re.Pattern, Rules]]:
    """When the first name is decoded: a reader that decodes none need not wait."""
    return [(form, re.compile(form.when), [(re.compile(rule.pattern), rule) for rule in form.rules]) for form in FORMS]


def _part(match: re.Match, rule: Rule) -> Part:
    says = rule.says(match) if callable(rule.says) else rule.says.format(match[0], *(g or "" for g in match.groups()))
    return Part(rule.field, match[0], says, rule.source)


def _find(body: str, rules: Rules) -> list[Part]:
    """In a template: a part a field, by the first of its rules that matches anywhere."""
    parts: dict[str, Part] = {}
    for pattern, rule in rules:
        if rule.field not in parts and (match := pattern.search(body)):
            parts[rule.field] = _part(match, rule)
    return list(parts.values())


def _scan(body: str, rules: Rules) -> tuple[list[Part], list[str]]:
    """In an underscored name: part by part. What no rule takes is kept up to the next underscore."""
    parts, rest, left, at = [], [], list(rules), 0
    body = re.sub(r"(?<=\w)[(<].*", "", body)  # arguments say no more; "Memset (Device)" has a space before its word
    while at < len(body):
        if body[at] in "_ ":
            at += 1
            continue
        for i, (pattern, rule) in enumerate(left):
            match = pattern.match(body, at)
            if match and match.end() > at:
                parts.append(_part(match, rule))
                at = match.end()
                del left[i]
                break
        else:
            end = body.find("_", at)
            end = len(body) if end < 0 else end
            rest.append(body[at:end])
            at = end
    return parts, rest
