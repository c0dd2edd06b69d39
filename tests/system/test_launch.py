"""The launchers of clusters, with stand-ins for the programs of the clusters."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import runs

SCRIPTS = runs.ROOT / "scripts"
FLAGS = SCRIPTS / "xla_flags.sh"
LAUNCHERS = ("launch_local.sh", "launch_tpu_pod.sh", "slurm_train.sbatch")
BASH = shutil.which("bash") or "bash"

# A run as the launchers see it: it says what it was given and does what MODE says.
RUN = """#!/usr/bin/env bash
echo "[$XLA_FLAGS] [$LIBTPU_INIT_ARGS]$(printf ' [%s]' "$@")" >> "$FOLDER/said"
trap 'echo saved >> "$FOLDER/said"; exit 130' TERM
case $MODE in
    done) exit 0 ;;
    fail) exit 7 ;;
    again) [[ $(wc -l < "$FOLDER/said") -gt 2 ]] && exit 0; exit 130 ;;
esac
echo training
touch "$FOLDER/waits"
for ((i = 0; i < 600; i++)); do command sleep 0.05; done
"""

# Cloud TPU: hosts are folders, and a command runs in a shell of each at the same time.
GCLOUD = """#!/usr/bin/env bash
echo "gcloud $*" >> "$FOLDER/calls"
for word in "$@"; do
    [[ $word == --worker=* ]] && hosts=${word#--worker=}
    [[ $word == --command=* ]] && command=${word#--command=}
done
[[ $hosts == all ]] && hosts='0 1'
case $4 in
    describe)
        if [[ -e $FOLDER/refusal ]]; then # once
            cat "$FOLDER/refusal" >&2
            rm "$FOLDER/refusal"
            exit 1
        fi
        cat "$FOLDER/state"
        ;;
    ssh)
        pids=() code=0
        for host in $hosts; do
            (cd "$FOLDER/host$host" && exec env HOME="$PWD" bash -c "$command") &
            pids+=("$!")
        done
        for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
        exit "$code"
        ;;
esac
"""

SRUN = """#!/usr/bin/env bash
echo "srun $*" >> "$FOLDER/calls"
while [[ $1 == --* ]]; do shift; done
echo $$ > "$FOLDER/pid"
exec "$@"
"""
SCANCEL = """#!/usr/bin/env bash
echo "scancel $*" >> "$FOLDER/calls"
kill -TERM "$(cat "$FOLDER/pid")"
"""
SCONTROL = '#!/usr/bin/env bash\necho "scontrol $*" >> "$FOLDER/calls"\n'


class Cluster:
    """A folder that stands for a cluster, whose programs come first in the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {
            "FOLDER": str(folder),
            "PATH": f"{folder}:{os.environ['PATH']}",
        }
        self.started: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def start(self, *line: object, **variables: str) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if "SLURM" not in k}
        process = subprocess.Popen(
            [BASH, *map(str, line)],
            cwd=self.folder / "checkout",
            env={**clean, "XLA_FLAGS": "", **self.variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *line: object, **variables: str) -> tuple[int, str]:
        """Return the exit code, and what was said on standard error."""
        process = self.start(*line, **variables)
        return self.end(process)

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        said = process.communicate(timeout=60)[1]
        return process.returncode, said

    def await_file(self, name: str) -> None:
        begun = time.monotonic()
        while not (self.folder / name).exists():
            assert time.monotonic() - begun < 30, self.lines("calls")
            time.sleep(0.02)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    # Without its waiting between two looks.
    made.write("sleep", "#!/usr/bin/env bash\nexec /bin/sleep 0.05\n")
    made.write("checkout/scripts/xla_flags.sh", FLAGS.read_text())
    yield made
    for process in made.started:
        process.kill()
        process.communicate(timeout=60)


@pytest.fixture
def tpu(cluster):
    """Return a TPU slice of two hosts on which jaxformer is installed."""
    cluster.write("gcloud", GCLOUD)
    cluster.write("state", "READY")
    for host in range(2):
        cluster.write(f"host{host}/jaxformer/.venv/bin/jaxformer", RUN)
        scripts = f"host{host}/jaxformer/scripts/xla_flags.sh"
        cluster.write(scripts, FLAGS.read_text())
    cluster.variables |= {"TPU": "pod", "ZONE": "here", "PROJECT": "ours"}
    return cluster


@pytest.fixture
def slurm(cluster):
    """Return a job of Slurm in a checkout."""
    for name, text in (("srun", SRUN), ("scancel", SCANCEL), ("scontrol", SCONTROL)):
        cluster.write(name, text)
    cluster.write("jaxformer", RUN)
    cluster.variables |= {"SLURM_JOB_ID": "12", "SLURM_CPUS_PER_TASK": "8"}
    return cluster


POD, JOB = SCRIPTS / "launch_tpu_pod.sh", SCRIPTS / "slurm_train.sbatch"
ARGUMENTS = ("--workdir=a b", "--config.x=$HOME '\"*")
GIVEN = " [train] [--distributed] [--workdir=a b] [--config.x=$HOME '\"*]"


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_explains_itself(cluster, name):
    """``--help`` prints the usage; without arguments it follows one line that says what
    is missing, and the exit code is 2.
    """
    process = cluster.start(SCRIPTS / name, "--help")
    usage = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert f"scripts/{name}" in usage
    assert not any(line.startswith("#") for line in usage.splitlines())
    code, said = cluster.run(SCRIPTS / name, TPU="", ZONE="")
    assert code == 2
    error, _, rest = said.partition("\n\n")
    assert error.startswith(f"{name}: ")
    assert rest == usage


def test_a_tpu_run_gets_its_arguments_and_flags(tpu):
    """Every host gets them word for word, and the flags of the launcher before those
    of the user, which win. The exit code is that of the training.
    """
    code, said = tpu.run(
        POD, "train", *ARGUMENTS, LIBTPU_INIT_ARGS="--own=1", MODE="done"
    )
    assert (code, said) == (0, "")
    first, second = tpu.lines("said")
    assert first == second
    assert first.endswith(" --own=1]" + GIVEN)
    assert first.startswith("[] [--xla_")
    calls = [call for call in tpu.lines("calls") if call.startswith("gcloud ")]
    assert len(calls) == 3
    assert all("pod --zone=here --project=ours" in call for call in calls)
    (tpu.folder / "said").unlink()
    assert tpu.run(POD, "train", "--x", MODE="fail")[0] == 7


def test_a_tpu_run_continues_after_maintenance(tpu):
    """A run that saved and ended starts again while the slice exists; once it is gone
    the launcher says so.
    """
    code, said = tpu.run(POD, "train", "--x", MODE="again")
    assert code == 0
    assert said == "saved, and the slice exists: training continues\n"
    assert len(tpu.lines("said")) == 4
    tpu.write("state", "PREEMPTED")
    code, said = tpu.run(POD, "train", "--x", MODE="again")
    assert code == 1
    assert "the slice is PREEMPTED: delete its queued resource" in said
    tpu.write("state", "STOPPED")
    code, said = tpu.run(POD, "train", "--x", MODE="again")
    assert code == 1
    assert "start it (gcloud compute tpus tpu-vm start pod --zone=here" in said


@pytest.mark.parametrize(
    ("refusal", "code", "words"),
    [
        ("NOT_FOUND: Resource 'projects/p/locations/z/nodes/pod'", 1, "create it"),
        ("There was a problem: HTTPSConnectionPool: Max retries", 0, "asking again"),
        ("Reauthentication failed. cannot prompt", 1, "cannot describe pod, where"),
        ("PERMISSION_DENIED: Permission denied", 1, "PERMISSION_DENIED"),
    ],
)
def test_a_slice_is_gone_only_where_gcloud_says_so(tpu, refusal, code, words):
    """Without a network the launcher asks again; it repeats any other error."""
    tpu.write("refusal", refusal)
    found, said = tpu.run(POD, "train", "--x", MODE="done")
    assert found == code
    assert words in said
    assert ("create it" in said) == ("NOT_FOUND" in refusal)


def test_stopping_a_tpu_run(tpu):
    """Training outlives its launcher. Another launcher follows it and does not start
    it twice. ``stop`` sends SIGTERM to every host, and the run is not started again.
    """
    first = tpu.start(POD, "train", "--x", MODE="wait")
    tpu.await_file("waits")
    first.kill()
    second = tpu.start(POD, "train", "--x", MODE="wait")
    assert second.stdout is not None
    logs = [second.stdout.readline() for _ in range(2)]
    assert logs == ["training\n"] * 2
    assert tpu.run(POD, "stop")[0] == 0
    assert tpu.end(second)[0] == 130
    starts, ends = tpu.lines("said")[:2], tpu.lines("said")[2:]
    assert all("--distributed" in line for line in starts)
    assert ends == ["saved", "saved"]


def test_a_slurm_run_gets_its_arguments_and_flags(slurm):
    """``srun`` is told the CPUs of a task, which some versions do not inherit; the
    user's flags come last and win. The exit code is that of the training.
    """
    code, said = slurm.run(JOB, *ARGUMENTS, XLA_FLAGS="--own=1", MODE="fail")
    assert (code, said) == (7, "")
    (line,) = slurm.lines("said")
    assert line.startswith("[--xla_gpu_")
    assert line.endswith(" --own=1] []" + GIVEN)
    (call,) = slurm.lines("calls")
    assert "--cpus-per-task=8 --kill-on-bad-exit=0 --wait=60 jaxformer train" in call


@pytest.mark.parametrize(
    ("number", "calls"),
    [
        (signal.SIGUSR1, ["scancel --signal=TERM 12.0", "scontrol requeue 12"]),
        (signal.SIGTERM, []),
    ],
)
def test_a_slurm_run_saves_before_it_ends(slurm, number, calls):
    """Before the time limit, announced by SIGUSR1, the run saves and the job is queued
    again. After ``scancel``, which sends SIGTERM to the run too, it only saves.
    """
    process = slurm.start(JOB, "--x", MODE="wait")
    slurm.await_file("waits")
    process.send_signal(number)
    if not calls:
        os.kill(int(slurm.lines("pid")[0]), number)
    assert slurm.end(process)[0] == 130
    assert slurm.lines("said")[1:] == ["saved"]
    assert slurm.lines("calls")[1:] == calls
