"""A worker that speaks the protocol of harness/rules/protocol.h but runs nothing.

The file named by FLASH_LADDER_FAKE determines its behaviour:

    {"device": {…} or null for "no GPU", "kernels": {"05": "crash"}, "tflops": {"07": 200.0}, "seconds_per_step": 0.3,
     "log": "file of requests"}

A kernel that is not named is "ok". A key may also name one configuration of a kernel ("05 64x64"), or the request that
times several of them ("05 time").
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

request = json.loads(sys.argv[1])
plan = json.loads(Path(os.environ["FLASH_LADDER_FAKE"]).read_text(encoding="utf-8"))
with open(plan["log"], "a+", encoding="utf-8") as log:
    log.seek(0)
    earlier = [json.loads(line)["pid"] for line in log]
    still_there = [pid for pid in earlier if Path(f"/proc/{pid}").exists()]
    log.write(json.dumps({**request, "pid": os.getpid(), "still_there": still_there}) + "\n")
events = os.fdopen(3, "w", encoding="utf-8")


def send(event: dict) -> None:
    events.write(json.dumps(event) + "\n")
    events.flush()


if request["command"] == "device":
    devices = plan["device"]
    devices = devices if isinstance(devices, list) else [devices] if devices else []
    if request["device"] < len(devices):
        send({"event": "device", "device": devices[request["device"]]})
    else:
        send({"event": "error", "kind": "unavailable", "message": "this machine has no such GPU"})
    sys.exit()

number = request["kernel"]
timing = request["command"] == "time"
behaviours = plan["kernels"]
behaviour = behaviours.get(f"{number} {'time' if timing else request['config']}", behaviours.get(number, "ok"))
print("a kernel's own printf")
sys.stdout.flush()
send({"event": "progress", "what": "check normal inputs", "done": 1, "total": 4})

if behaviour == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
elif behaviour == "hang":
    time.sleep(600)
elif behaviour == "silent":
    sys.exit(7)
elif behaviour == "garbage":
    events.write("Segmentation fault (core dumped)\n")
    sys.exit()
elif behaviour == "slow":  # slower than the time limit in total, but never in one step
    for done in range(6):
        time.sleep(plan["seconds_per_step"])
        send({"event": "progress", "what": "check ramp inputs", "done": done, "total": 6})
elif behaviour == "cuda":
    send({"event": "error", "kind": "cuda", "message": "an illegal memory access was encountered"})
    sys.exit()

problem = request["problem"]
numbered = [name.split("_", 1) for name in plan["names"] if re.match(r"[BD]?\d+_", name)]
names = dict(numbered)
names |= {name: name for name in plan["names"] if name.split("_", 1) not in numbered}  # extensions
work = 4.0 * problem["batch"] * problem["heads"] * problem["seq_len"] * problem["seq_len_kv"] * problem["head_dim"]


def right_result(config: str, check: bool, benchmark: bool) -> dict:
    figures = plan.get("tflops", {})
    tflops = figures.get(f"{number} {config}", figures.get(number, 10.0 * (list(names).index(number) + 1)))
    median = work / tflops / 1e9
    devices = plan["device"]
    return {
        "kernel": number,
        "name": names[request["kernel"]],
        "config": config,
        "device": devices["name"] if isinstance(devices, dict) else devices[request["device"]]["name"],
        "problem": problem,
        **({} if request["data"] == "normal" else {"data": request["data"]}),
        "status": "ok",
        "reason": None,
        "correct": True if check else None,
        "max_abs_error": 0.0004 if check else None,
        "relative_error": 0.4 if check else None,
        "ms": {"median": median, "p10": median * 0.99, "p90": median * 1.01} if benchmark else None,
        "tflops": tflops if benchmark else None,
        **({"load": {"sm_clock_mhz": 1605, "power_watts": 698.4}} if benchmark else {}),
        "counters": None,
        "findings": [],
        "static": None,
    }


if timing:
    configs = request["configs"][1:] if behaviour == "incomplete" else request["configs"]
    send({"event": "results", "results": [right_result(config, False, True) for config in configs]})
    sys.exit()
result = right_result(request["config"], request["check"], request["benchmark"])
if behaviour == "wrong":
    result |= {
        "status": "wrong",
        "reason": "the output differs from the reference",
        "correct": False,
        "max_abs_error": "nan",
        "relative_error": 17.5,
        "mismatches": [
            {"batch": 1, "head": 2, "row": 345, "column": 67, "got": "nan", "expected": 0.25},
            {"batch": 1, "head": 3, "row": 346, "column": 68, "got": 0.5, "expected": 0.125},
        ],
        "tile_map": "batch 1, head 2:  . . # .\n",
        "diagnosis": {
            "sentences": ["Suggests: the scores are not scaled.", "Wrong in rows 8–15 modulo 16."],
            "suggests": ["scale_left_out"],
            "first": {"warp": 2, "lane": 5, "mma_m": 0, "mma_n": 8, "register": 3},
            "experiments": [{"name": "1 K/V tile", "right": False}],
        },
    }
elif behaviour == "finding":
    finding = {
        "kind": "race",
        "message": "a read of byte 0 of shared memory, and nothing orders it after the write",
        "kernel": "flash_attention",
        "position": ["common/ptx.h:76", "kernels/07_ldmatrix.cu:94"],
        "cta": [0, 1, 0],
        "warp": 2,
        "lane": None,
        "address": 0,
        "other_position": ["kernels/07_ldmatrix.cu:62"],
        "waits": [],
        "count": 3,
        "text": "race: a read of byte 0 of shared memory",
    }
    result |= {
        "status": "wrong",
        "reason": "the virtual GPU found: a read of byte 0",
        "correct": False,
        "findings": [finding] * 12,
        "findings_kinds": 130,  # a worker lists at most 100
        "findings_total": 390,
    }
elif behaviour == "other":
    result["config"] = "another"
send({"event": "result", "result": result})
