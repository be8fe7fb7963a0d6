# Before project(): nvcc where CMake does not look for it by itself. It looks at CMAKE_CUDA_COMPILER, the environment's CUDACXX
# and PATH; scripts/setup names one.
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  file(GLOB wheel_directories ${CMAKE_CURRENT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu*/bin)
  find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin ${wheel_directories})
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)  # CMake's own message says what to do
  endif()
endif()
