"""Runs a workflow of GitHub Actions without GitHub, as far as the recipe needs it. Its `run` steps are executed
unchanged; the actions between them (checkout, cache, upload) are simulated here. It refuses anything that it does not
know."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from setup_test import TOOLS

# A runner as setup sees it. The list of its packages is a file, which disappears with the runner.
RUNNER = TOOLS | {
    "sudo": 'export USER_ID=0; exec "$@"',
    "id": '[ "$*" = -u ] || exec /usr/bin/id "$@"; echo "${USER_ID:-1001}"',
    "git": 'exec /usr/bin/git "$@"',
    "dpkg-query": 'grep -qxF -e "${*: -1}" "$MACHINE/packages" && echo install ok installed',
    "apt-get": """
echo "apt-get $1" >>"$LOG"
for word in "$@"; do case "$word" in -*) ;; *) echo "$word" >>"$MACHINE/packages" ;; esac; done""",
    "python3": TOOLS["python3"].replace("esac'\n", """*) exec "$PYTHON" "$@" ;; esac'\n"""),
    # It uses this build in place of running a compiler: if there is no build yet, or one that is older than a source.
    "cmake": TOOLS["cmake"]
    + """
if [ "$1" = --build ]; then
  newer=$(find CMakeLists.txt harness common -type f -newer build/grader.json -print -quit 2>&1)
  [ -z "$newer" ] || { echo compile >>"$LOG"; cp "$LENT/grader.json" build; }
fi""",
}


@dataclasses.dataclass
class Run:
    """The outcome of a push."""

    succeeded: bool = True
    summary: str = ""
    setup: list[str] = dataclasses.field(default_factory=list)  # setup's requests to the machine
    artifacts: dict[str, Path] = dataclasses.field(default_factory=dict)
    said: str = ""


class GitHub:
    """Repositories by name, the cache, and a workspace at the same path in each run."""

    def __init__(self, folder: Path, lent: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.caches: dict[str, Path] = {}
        self.repositories: dict[str, Path] = {}
        programs = folder / "programs"
        programs.mkdir()
        for name, script in RUNNER.items():
            (programs / name).write_text(f"#!/usr/bin/env bash\n{script}\n", encoding="utf-8")
            (programs / name).chmod(0o755)
        self.machine = {"PATH": f"{programs}:/usr/bin:/bin", "LOG": str(folder / "log"), "LENT": str(lent),
                        "PYTHON": sys.executable,
                        "MACHINE": str(folder / "machine"), "HOME": str(folder / "home"), "GIT_CONFIG_NOSYSTEM": "1",
                        "TMPDIR": os.environ.get("TMPDIR", "/tmp")}  # fmt: skip
        (folder / "home").mkdir()

    def git(self, *words: str | Path) -> str:
        who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
        done = subprocess.run(["/usr/bin/git", *who, *map(str, words)], env=self.machine, capture_output=True,
                              text=True, check=True)  # fmt: skip
        return done.stdout.strip()

    def create(self, name: str) -> Path:
        """A new repository, to be filled."""
        path = self.folder / "repositories" / name
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main", path)
        self.repositories[name] = path
        return path

    def commit(self, name: str) -> None:
        path = self.repositories[name]
        self.git("-C", path, "add", "--all", "--force")
        self.git("-C", path, "commit", "--quiet", "--message=hand in")

    def push(self, name: str) -> Run:
        """Commits everything in the repository, and runs its only workflow, which has one job, on a new machine."""
        import yaml

        self.commit(name)
        [file] = (self.repositories[name] / ".github" / "workflows").iterdir()
        workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert "push" in workflow[True]  # YAML 1.1 reads `on` as a truth value; GitHub does not
        assert workflow["permissions"] == {"contents": "read"}
        [job] = workflow["jobs"].values()
        for folder in (self.workspace, self.folder / "machine"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        log, summary = self.folder / "log", self.folder / "summary.md"
        log.write_text("")
        summary.write_text("")
        environment = self.machine | workflow["env"] | {"GITHUB_STEP_SUMMARY": str(summary)}
        run = Run()
        outputs: dict[str, dict[str, str]] = {}
        for step in job["steps"]:
            if not self._is_run(str(step.get("if", "success()")), run.succeeded, outputs):
                continue
            assert set(step) <= {"uses", "id", "name", "if", "with", "run"}, "what this does not know"
            if "run" in step:
                assert "${{" not in step["run"], "what others write must not become part of a script"
                script = self.folder / "script.sh"
                script.write_text(step["run"], encoding="utf-8")
                # docs.github.com, "Workflow syntax", jobs.<job_id>.steps[*].shell: the default if none is given.
                done = subprocess.run(["bash", "-e", script], cwd=self.workspace, env=environment, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # fmt: skip
                run.said += done.stdout
                run.succeeded &= done.returncode == 0
            else:
                inputs = {key: self._filled(value, workflow["env"], outputs) for key, value in step["with"].items()}
                result = self._action(step["uses"], inputs, name, run)
                if "id" in step:
                    outputs[step["id"]] = result
        run.summary = summary.read_text(encoding="utf-8")
        run.setup = log.read_text(encoding="utf-8").splitlines()
        return run

    @staticmethod
    def _is_run(condition: str, succeeded: bool, outputs: dict[str, dict[str, str]]) -> bool:
        if condition in ("always()", "success()"):
            return succeeded or condition == "always()"
        step, output, value = re.fullmatch(r"steps\.([\w-]+)\.outputs\.([\w-]+) != '(\w+)'", condition).groups()
        return succeeded and outputs[step][output] != value

    @staticmethod
    def _filled(text: str, env: dict[str, str], outputs: dict[str, dict[str, str]]) -> str:
        """Expands the two kinds of expressions that it uses: `with` may contain both (docs.github.com, "Contexts")."""

        def value(match: re.Match) -> str:
            words = match[1].split(".")
            if words[0] == "env":
                return env[words[1]]
            assert words[0] == "steps" and words[2] == "outputs"
            return outputs[words[1]][words[3]]

        text = re.sub(r"\$\{\{ ([\w.-]+) \}\}", value, text)
        assert "${{" not in text, text
        return text

    def _action(self, uses: str, inputs: dict[str, str], pushed: str, run: Run) -> dict[str, Any]:
        action, _, version = uses.partition("@")
        assert version[0] == "v" and int(version[1:]) >= 5, "a version before that ran in Node 20, which is gone"
        if action == "actions/checkout":
            path = self.workspace / inputs.pop("path")
            source = self.repositories[inputs.pop("repository", pushed)]
            branch = inputs.pop("ref", "main")
            self.git("clone", "--quiet", "--depth=1", f"--branch={branch}", f"file://{source}", path)
            assert not inputs
            return {"commit": self.git("-C", path, "rev-parse", "HEAD")}
        paths = inputs.pop("path").split()
        if action == "actions/upload-artifact":
            assert inputs == {"name": "results"}
            run.artifacts = {path: self.workspace / path for path in paths if (self.workspace / path).exists()}
            return {}
        key = inputs.pop("key") + str(paths)
        assert not inputs
        tar = ["tar", "--posix", "-C", self.workspace, "-f"]  # as the action does, with exact times
        if action == "actions/cache/restore":
            if key in self.caches:
                subprocess.run([*tar, self.caches[key], "-x"], check=True)
            return {"cache-hit": "true" if key in self.caches else ""}
        assert action == "actions/cache/save" and key not in self.caches
        self.caches[key] = self.folder / f"cache {len(self.caches)}.tar"
        subprocess.run([*tar, self.caches[key], "-c", *paths], check=True)
        return {}
