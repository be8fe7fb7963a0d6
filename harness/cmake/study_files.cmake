# What can be studied of the kernels without running them, in ${PROJECT_BINARY_DIR}/study. For each NN_name.cu:
#
#   NN_name.compute_80.ptx   PTX with line information, as the virtual GPU runs it;   and the same five for sm_90
#   NN_name.sm_80.cubin      machine code
#   NN_name.sm_80.sass       the same as text, by nvdisasm
#   NN_name.sm_80.lines      the same with the line of the PTX that each instruction comes from
#   NN_name.sm_80.ptxas      ptxas's report: registers and spills
#
# and for a kernel of kernels/hopper/ only those of sm_90a.
#
# CMake 3.25 compiles to PTX by itself, with the options, include directories and dependency files that the kernels' object
# library has; ptxas and nvdisasm then run by custom command. That is faster than nvcc -cubin (which would parse each source a
# third time, only for its PTX), and needs neither cuobjdump nor an object that has machine code for both architectures: under
# the `native` preset it has not.

set(nvdisasm_hints)
foreach(prefix ${PROJECT_SOURCE_DIR}/.venv $ENV{VIRTUAL_ENV})
  file(GLOB wheel_directories ${prefix}/lib/python3*/site-packages/nvidia/cu*/bin)
  list(APPEND nvdisasm_hints ${wheel_directories})
endforeach()
get_filename_component(nvcc_directory ${CMAKE_CUDA_COMPILER} DIRECTORY)
find_program(
  FLASH_LADDER_NVDISASM nvdisasm
  HINTS ${nvcc_directory} ${CUDAToolkit_BIN_DIR} ${nvdisasm_hints}
  DOC "nvdisasm, which prints the machine code of the kernels")
if(NOT FLASH_LADDER_NVDISASM)
  message(
    FATAL_ERROR
      "nvdisasm was not found next to nvcc (${nvcc_directory}), in ${PROJECT_SOURCE_DIR}/.venv, or on PATH. The harness reads "
      "the kernels' machine code with it. Run scripts/setup, or install a whole CUDA toolkit, or "
      "`pip install nvidia-cuda-nvdisasm` into .venv; or name the program with -DFLASH_LADDER_NVDISASM=/path/to/nvdisasm.")
endif()

add_custom_target(flash_ladder_study ALL)

# flash_ladder_study_files(ARCH SOURCES…): the target flash_ladder_study also makes the files above for each source and this
# architecture: 80, 90 or 90a.
function(flash_ladder_study_files arch)
  if(NOT ARGN)
    return()
  endif()
  set(study ${PROJECT_BINARY_DIR}/study)
  set(script ${PROJECT_SOURCE_DIR}/harness/cmake/study_one_kernel.cmake)
  set(all_files)
  set(ptx_library flash_ladder_ptx_${arch})
  add_library(${ptx_library} OBJECT ${ARGN})
  target_link_libraries(${ptx_library} PRIVATE flash_ladder_common flash_ladder_options)
  target_compile_options(${ptx_library} PRIVATE -lineinfo)
  add_dependencies(${ptx_library} flash_ladder_check_kernels)
  set_target_properties(
    ${ptx_library} PROPERTIES CUDA_PTX_COMPILATION ON CUDA_ARCHITECTURES ${arch}-virtual EXPORT_COMPILE_COMMANDS OFF)

  foreach(source ${ARGN})
    get_filename_component(kernel ${source} NAME_WE)
    set(ptx "$<FILTER:$<TARGET_OBJECTS:${ptx_library}>,INCLUDE,/${kernel}\\.>")
    set(ptx_copy ${study}/${kernel}.compute_${arch}.ptx)
    set(files ${ptx_copy})
    foreach(ending cubin sass lines ptxas)
      list(APPEND files ${study}/${kernel}.sm_${arch}.${ending})
    endforeach()
    add_custom_command(
      OUTPUT ${files}
      COMMAND
        ${CMAKE_COMMAND} -D NVCC=${CMAKE_CUDA_COMPILER} -D NVDISASM=${FLASH_LADDER_NVDISASM} -D ARCH=${arch} -D PTX=${ptx} -D
        PTX_COPY=${ptx_copy} -D OUTPUT=${study}/${kernel}.sm_${arch} -P ${script}
      DEPENDS ${ptx} ${script} ${FLASH_LADDER_NVDISASM}
      COMMENT "Studying ${kernel} for sm_${arch}"
      VERBATIM)
    list(APPEND all_files ${files})
  endforeach()
  add_custom_target(flash_ladder_study_${arch} DEPENDS ${all_files})
  add_dependencies(flash_ladder_study_${arch} ${ptx_library})  # Makefiles need to be told; Ninja knows
  add_dependencies(flash_ladder_study flash_ladder_study_${arch})
endfunction()
