# nvcc 13.0 makes one of two PTX texts of the same source, seldom the other, depending on where its memory happens to lie: seen
# in 7 of 300 compilations of 03_tiled.cu, and in none of 300 without address space randomisation. What the virtual GPU counts is
# compared with profiles/emulator to the last instruction, so nvcc runs without, where the system allows that.
if(NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
  find_program(FLASH_LADDER_SETARCH setarch)
  if(FLASH_LADDER_SETARCH)
    execute_process(COMMAND ${FLASH_LADDER_SETARCH} -R true RESULT_VARIABLE refused OUTPUT_QUIET ERROR_QUIET)
    if(refused EQUAL 0)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${FLASH_LADDER_SETARCH} -R)
    endif()
  endif()
endif()
