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
# The first two and the last are kept when the kernels' object library is compiled (compile_kernel.sh); nvdisasm then makes the
# other two by custom command.

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

# flash_ladder_study_files(LIBRARY ARCHITECTURES SOURCES…): the target flash_ladder_study also makes the files above for each source
# of the object library, for these architectures, which it is compiled for: "80;90".
function(flash_ladder_study_files library architectures)
  if(NOT ARGN)
    return()
  endif()
  set(study ${PROJECT_BINARY_DIR}/study)
  set(script ${PROJECT_SOURCE_DIR}/harness/cmake/study_one_kernel.cmake)
  set(all_files)
  # Before a launcher that is there already, which makes the compiler steady.
  set_target_properties(
    ${library} PROPERTIES CUDA_COMPILER_LAUNCHER
                          "${PROJECT_SOURCE_DIR}/harness/cmake/compile_kernel.sh;${study};${CMAKE_CUDA_COMPILER_LAUNCHER}")

  foreach(source ${ARGN})
    get_filename_component(kernel ${source} NAME_WE)
    foreach(arch ${architectures})
      set(cubin ${study}/${kernel}.sm_${arch}.cubin)
      set_property(SOURCE ${source} APPEND PROPERTY OBJECT_OUTPUTS ${study}/${kernel}.compute_${arch}.ptx ${cubin}
                                                    ${study}/${kernel}.sm_${arch}.ptxas)
      set(text ${study}/${kernel}.sm_${arch}.sass ${study}/${kernel}.sm_${arch}.lines)
      add_custom_command(
        OUTPUT ${text}
        COMMAND ${CMAKE_COMMAND} -D NVDISASM=${FLASH_LADDER_NVDISASM} -D CUBIN=${cubin} -P ${script}
        DEPENDS ${cubin} ${script} ${FLASH_LADDER_NVDISASM}
        COMMENT "Studying ${kernel} for sm_${arch}"
        VERBATIM)
      list(APPEND all_files ${text})
    endforeach()
  endforeach()
  add_custom_target(${library}_study DEPENDS ${all_files})
  add_dependencies(${library}_study ${library})  # Makefiles need to be told; Ninja knows
  add_dependencies(flash_ladder_study ${library}_study)
endfunction()
