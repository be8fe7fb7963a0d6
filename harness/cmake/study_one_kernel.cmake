# Makes the study files of one kernel and one architecture from its PTX: see study_files.cmake. Run with cmake -P and
#   NVCC, NVDISASM   programs
#   ARCH             80
#   PTX              the kernel's PTX
#   PTX_COPY         where to put a copy of it
#   OUTPUT           path of the files to make, without their endings
# Each file is written under another name and renamed, so that an interrupted build leaves none half written.

# run(COMMAND…): leaves what the command prints in `output` and `errors`; shows both and stops when it fails.
macro(run)
  execute_process(
    COMMAND ${ARGV}
    RESULT_VARIABLE status
    OUTPUT_VARIABLE output
    ERROR_VARIABLE errors)
  if(NOT status EQUAL 0)
    message("${output}${errors}")
    string(JOIN " " command_line ${ARGV})
    message(FATAL_ERROR "That was the answer (${status}) of: ${command_line}")
  endif()
endmacro()

get_filename_component(directory ${OUTPUT} DIRECTORY)
file(MAKE_DIRECTORY ${directory})

run(${NVCC} -cubin -arch=sm_${ARCH} -lineinfo -Xptxas=-v ${PTX} -o ${OUTPUT}.cubin.part)
file(WRITE ${OUTPUT}.ptxas.part "${errors}")
run(${NVDISASM} --print-code ${OUTPUT}.cubin.part)
file(WRITE ${OUTPUT}.sass.part "${output}")
run(${NVDISASM} --print-code --print-line-info-ptx ${OUTPUT}.cubin.part)
file(WRITE ${OUTPUT}.lines.part "${output}")

file(COPY_FILE ${PTX} ${PTX_COPY}.part)
file(RENAME ${PTX_COPY}.part ${PTX_COPY})
foreach(ending cubin ptxas sass lines)
  file(RENAME ${OUTPUT}.${ending}.part ${OUTPUT}.${ending})
endforeach()
