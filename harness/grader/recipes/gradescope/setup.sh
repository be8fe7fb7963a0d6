#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the image: the files that build_zip packed are in /autograder/source.
set -euo pipefail
cd "${AUTOGRADER:-/autograder}/source/ladder"
apt-get update -qq
scripts/setup --slim harness-grader
