# Prints the machine code of one kernel: see study_files.cmake. Run with cmake -P and
#   NVDISASM   the program
#   CUBIN      …/NN_name.sm_80.cubin; …/NN_name.sm_80.sass and .lines are made
# Each file is written under another name and renamed, so that an interrupted build leaves none half written.

set(command ${NVDISASM} --print-code --print-line-info-ptx ${CUBIN})
execute_process(
  COMMAND ${command}
  RESULT_VARIABLE status
  OUTPUT_VARIABLE output
  ERROR_VARIABLE errors)
if(NOT status EQUAL 0)
  message("${output}${errors}")
  string(JOIN " " command_line ${command})
  message(FATAL_ERROR "That was the answer (${status}) of: ${command_line}")
endif()

cmake_path(REPLACE_EXTENSION CUBIN LAST_ONLY lines OUTPUT_VARIABLE lines)
cmake_path(REPLACE_EXTENSION CUBIN LAST_ONLY sass OUTPUT_VARIABLE sass)
file(WRITE ${lines}.part "${output}")
string(REGEX REPLACE "[^\n]*//## [^\n]*\n" "" output "${output}")
file(WRITE ${sass}.part "${output}")
file(RENAME ${lines}.part ${lines})
file(RENAME ${sass}.part ${sass})
