"""All that was found, as one text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from laurel.preflight.doctor.finding import Finding, Severity, errors
from laurel.preflight.doctor.inspector import Facts

_TITLES: dict[Severity, str] = {"error": "errors", "warning": "warnings", "note": "notes"}


@dataclass
class Report:
    """``cluster`` is Ray's address, "" for this machine alone; ``facts`` are lines of what was tried and is well."""

    cluster: str = ""
    nodes: dict[str, Facts] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def code(self) -> int:
        """Exit code of `laurel doctor`."""
        return 1 if errors(self.findings) else 0

    def text(self) -> str:
        lines = [f"{name}: {facts}" for name, facts in self.nodes.items()] + self.facts
        return "\n".join([*lines, *listed(self.findings), "", self.summary()])

    def summary(self) -> str:
        """Example: ``2 nodes at 10.0.0.1:6379, looked at in 9 s: 1 error, 2 warnings``."""
        where = f"{_count(len(self.nodes), 'node')} at {self.cluster}" if self.cluster else "this machine"
        counts = [
            _count(number, severity)
            for severity in _TITLES
            if severity != "note" and (number := sum(one.severity == severity for one in _together(self.findings)))
        ]
        return f"{where}, looked at in {self.seconds:.0f} s: {', '.join(counts) or 'nothing is wrong'}"

    def json(self) -> str:
        return json.dumps(
            {
                "ok": self.code == 0,
                "cluster": self.cluster or None,
                "seconds": round(self.seconds, 1),
                "nodes": {name: _plain(asdict(facts)) for name, facts in self.nodes.items()},
                "facts": self.facts,
                "findings": [asdict(finding) for finding in self.findings],
            },
            indent=2,
        )


def listed(findings: Sequence[Finding], severities: Sequence[Severity] = ("error", "warning", "note")) -> list[str]:
    """The findings under their titles, gravest first; what several nodes share is said once."""
    lines: list[str] = []
    for severity in severities:
        chosen = _together([finding for finding in findings if finding.severity == severity])
        if chosen:
            lines += ["", f"{_TITLES[severity]}:"]
        for number, finding in enumerate(chosen, 1):
            where = f"{finding.where}: " if finding.where else ""
            lines.append(f"  {number}. [{finding.topic}] {where}{finding.what}")
            lines += [f"     {finding.cure}"] if finding.cure else []
    return lines


def _together(findings: Sequence[Finding]) -> list[Finding]:
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        places.setdefault(replace(finding, where=""), []).append(finding.where)
    return [replace(finding, where=", ".join(filter(None, where))) for finding, where in places.items()]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
