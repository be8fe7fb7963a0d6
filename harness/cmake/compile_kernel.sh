#!/usr/bin/env bash
# Compiles a kernel, and keeps for the study the intermediate files of nvcc that would otherwise be deleted. So the
# study shows exactly the code that runs, and no source is compiled twice.
#
#   compile_kernel.sh STUDY nvcc … -c …/NN_name.cu -o OBJECT
#
#   STUDY/NN_name.compute_80.ptx   the PTX              for each architecture for which the object is compiled
#   STUDY/NN_name.sm_80.cubin      the machine code
#   STUDY/NN_name.sm_80.ptxas      ptxas's report: registers and spills
#
# Each file is written under another name and then renamed, so that an interrupted build leaves no half-written file.
set -euo pipefail
study=$1
shift

previous=
for word in "$@"; do
  case $previous in
    -c) name=$(basename "$word" .cu) ;;
    -o) object=$word ;;
  esac
  previous=$word
done

kept=$object.kept
rm -rf "$kept"
mkdir -p "$kept" "$study"
trap 'rm -rf "$kept"' EXIT

# A compiler cache returns only the object, not the files that are kept here.
export CCACHE_DISABLE=1
status=0
"$@" -Xptxas=-v -keep -keep-dir "$kept" 2>"$kept/messages" || status=$?
grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame' "$kept/messages" >&2 || true
[ $status = 0 ] || exit $status

# The names that nvcc uses depend on the number of architectures.
for ptx in "$kept"/*.ptx; do
  architecture=$(sed -n 's/^\.target sm_\([0-9a-z]*\).*/\1/p' "$ptx")
  mv "$ptx" "$study/$name.compute_$architecture.ptx"
done
for cubin in "$kept"/*_*.cubin; do
  architecture=${cubin##*_}
  architecture=${architecture%.cubin}
  awk -v code="'sm_$architecture'" 'BEGIN { wanted = 1 } /Compiling entry function/ { wanted = $NF == code } wanted' \
    "$kept/messages" >"$kept/report"
  mv "$kept/report" "$study/$name.sm_$architecture.ptxas"
  mv "$cubin" "$study/$name.sm_$architecture.cubin"
done
