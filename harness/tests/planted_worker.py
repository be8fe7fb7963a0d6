"""A worker of the virtual GPU that runs a planted fault in place of the requested version.

The harness knows the versions of the ladder, whereas the worker of planted_faults.py knows only its own. The version
named by the environment variable FLASH_LADDER_FAULT ("fault_07_ldmatrix_2") runs, and its answer carries the name that
was requested. Run with python -IS.
"""

import json
import os
import sys
from pathlib import Path

request = json.loads(sys.argv[1])
asked, fault = request.get("kernel"), os.environ["FLASH_LADDER_FAULT"]
if asked is not None:
    request["kernel"] = fault
# Events go to standard output if descriptor 3 is closed; the output of kernels goes to standard error.
reading, writing = os.pipe()
if os.fork() == 0:
    os.close(reading)
    os.dup2(2, 1)
    os.dup2(writing, 3)
    worker = Path(os.environ["FLASH_LADDER_BUILD_DIR"]) / "harness-worker-faults"
    os.execv(worker, [worker, json.dumps(request)])
os.close(writing)
with open(reading, encoding="utf-8") as events:
    for line in events:
        event = json.loads(line)
        answer = event.get(event["event"])
        if isinstance(answer, dict) and answer.get("kernel") == fault:
            answer["kernel"] = asked
        os.write(3, (json.dumps(event) + "\n").encode())
_, status = os.wait()
sys.exit(os.waitstatus_to_exitcode(status))
