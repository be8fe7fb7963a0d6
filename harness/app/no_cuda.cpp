// The functions of CUDA that a kernel's module calls when it is loaded, for a program that loads it only to read its
// registration and launches nothing. Their signatures are in the toolkit's crt/host_runtime.h.
extern "C" {

#define VISIBLE __attribute__((visibility("default")))

VISIBLE void** __cudaRegisterFatBinary(void* fat_binary) { return static_cast<void**>(fat_binary); }
VISIBLE void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
VISIBLE void __cudaUnregisterFatBinary(void** /*handle*/) {}
VISIBLE void __cudaRegisterFunction(void** /*handle*/, const char* /*host_function*/, char* /*device_function*/,
                                    const char* /*device_name*/, int /*thread_limit*/, void* /*thread_id*/,
                                    void* /*block_id*/, void* /*block_dim*/, void* /*grid_dim*/, int* /*warp_size*/) {}
VISIBLE void __cudaRegisterVar(void** /*handle*/, char* /*host_variable*/, char* /*device_address*/,
                               const char* /*device_name*/, int /*ext*/, unsigned long /*size*/, int /*constant*/,
                               int /*global*/) {}

}  // extern "C"
