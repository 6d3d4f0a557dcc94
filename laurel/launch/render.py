"""The file that a platform takes, from a job: a pure function of its arguments."""

from __future__ import annotations

import json
import shlex

import jinja2

from laurel.launch.spec import (
    DstackOptions,
    Job,
    KubeRayOptions,
    Options,
    RayOptions,
    SkyPilotOptions,
    SlurmOptions,
)

_TEMPLATES = {
    SlurmOptions: ("slurm", "slurm.sh.j2"),
    SkyPilotOptions: ("skypilot", "skypilot.yaml.j2"),
    DstackOptions: ("dstack", "dstack.yaml.j2"),
    RayOptions: ("ray", "ray.sh.j2"),
    KubeRayOptions: ("kuberay", "kuberay.yaml.j2"),
}


def render(job: Job, options: Options) -> str:
    """A script or YAML file with a final newline; words are quoted for the shell, scalars for YAML."""
    platform, template = _TEMPLATES[type(options)]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("laurel.launch"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # no HTML: each value is quoted by the filter of its language
    )
    environment.filters |= {"sh": shlex.quote, "yaml": yaml_scalar}
    return environment.get_template(template).render(
        job=job,
        options=options,
        node_command=shell_lines(job.node_words(platform)),
        training=shell_lines(["python3", "-m", "laurel.trainer.main_ppo", *job.training()]),
    )


def yaml_scalar(value: object) -> str:
    """A scalar as JSON writes it, which is YAML whatever it contains."""
    return json.dumps(value)


def shell_lines(words: list[str]) -> list[str]:
    """A command cut before each setting, to be joined by a backslash and a newline."""
    lines: list[list[str]] = [[]]
    for word in words:
        if "=" in word and not word.startswith("-"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return [" ".join(line) for line in lines]
