# Writes unavailable_calls.inc: one line for each function of the toolkit's cuda_runtime_api.h that SOURCES do not define.
#
# cmake -DHEADER=… -DSOURCES="…;…" -DOUTPUT=… -P unavailable_calls.cmake
set(defined)
foreach(source ${SOURCES})
  file(STRINGS ${source} lines REGEX "^cudaError_t cuda[A-Za-z0-9]+\\(")
  list(TRANSFORM lines REPLACE "^cudaError_t (cuda[A-Za-z0-9]+)\\(.*" "\\1")
  list(APPEND defined ${lines})
endforeach()

file(STRINGS ${HEADER} lines REGEX "^ *extern .*cudaError_t CUDARTAPI cuda[A-Za-z0-9_]+\\(")
list(TRANSFORM lines REPLACE ".*CUDARTAPI (cuda[A-Za-z0-9_]+)\\(.*" "\\1" OUTPUT_VARIABLE declared)
list(REMOVE_DUPLICATES declared)
set(missing ${declared})
list(REMOVE_ITEM missing ${defined})

# nvcc --default-stream per-thread renames the functions that take a stream or wait.
file(STRINGS ${HEADER} per_thread REGEX "define +cuda[A-Za-z0-9]+ +__CUDART_API_PT(SZ|DS)\\(")
list(TRANSFORM per_thread REPLACE ".*__CUDART_API_PTSZ\\((.+)\\).*" "UNAVAILABLE_PER_THREAD(\\1, _ptsz)")
list(TRANSFORM per_thread REPLACE ".*__CUDART_API_PTDS\\((.+)\\).*" "UNAVAILABLE_PER_THREAD(\\1, _ptds)")
list(REMOVE_DUPLICATES per_thread)

list(TRANSFORM missing REPLACE "(.+)" "UNAVAILABLE(\\1)")
list(JOIN missing "\n" missing)
list(JOIN per_thread "\n" per_thread)
file(WRITE ${OUTPUT} "${missing}\n${per_thread}\n")
