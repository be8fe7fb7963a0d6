# FLASH_LADDER_NVDISASM: the program that prints machine code as text, for the harness (harness/sass/machine_code.h).
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
