#!/usr/bin/env bash
# Gradescope runs this once, as root, when it makes the image: what build_zip has packed lies in /autograder/source.
set -euo pipefail
cd "${AUTOGRADER:-/autograder}/source/ladder"
apt-get update -qq
scripts/setup --slim harness-grader
