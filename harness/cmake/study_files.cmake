# The files for studying the kernels without running them, in ${PROJECT_BINARY_DIR}/study. For each NN_name.cu:
#
#   NN_name.compute_80.ptx   PTX with line information, which the virtual GPU runs;   and the same three for sm_90
#   NN_name.sm_80.cubin      machine code
#   NN_name.sm_80.ptxas      ptxas's report: registers and spills
#
# For a kernel of kernels/hopper/ there are only the files for sm_90a. They are kept when the kernels' object library is
# compiled (compile_kernel.sh). The harness creates NN_name.sm_80.sass from the cubin on first use
# (harness/sass/machine_code.h).

# flash_ladder_study_files(LIBRARY ARCHITECTURES SOURCES…): keeps the files above for each source of the object library
# and for each of these architectures, for which the library is compiled: "80;90".
function(flash_ladder_study_files library architectures)
  if(NOT ARGN)
    return()
  endif()
  set(study ${PROJECT_BINARY_DIR}/study)
  # Goes before a launcher that is already set, which makes the compiler's output reproducible.
  set_target_properties(
    ${library} PROPERTIES CUDA_COMPILER_LAUNCHER
                          "${PROJECT_SOURCE_DIR}/harness/cmake/compile_kernel.sh;${study};${CMAKE_CUDA_COMPILER_LAUNCHER}")
  foreach(source ${ARGN})
    get_filename_component(kernel ${source} NAME_WE)
    foreach(arch ${architectures})
      set_property(
        SOURCE ${source} APPEND PROPERTY OBJECT_OUTPUTS ${study}/${kernel}.compute_${arch}.ptx ${study}/${kernel}.sm_${arch}.cubin
                                         ${study}/${kernel}.sm_${arch}.ptxas)
    endforeach()
  endforeach()
endfunction()
