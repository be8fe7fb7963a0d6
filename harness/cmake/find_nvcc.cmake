# To be included before project(): finds nvcc in places where CMake does not look. CMake itself looks at
# CMAKE_CUDA_COMPILER, the environment variable CUDACXX and PATH; scripts/setup sets one of them.
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  file(GLOB wheel_directories ${CMAKE_CURRENT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu*/bin)
  find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin ${wheel_directories})
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)  # CMake's own message says what to do
  endif()
endif()
