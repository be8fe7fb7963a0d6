// The texts of error codes.
#include <algorithm>
#include <iterator>

#include "emulator/runtime/device.h"

namespace flash_ladder::emulator::runtime {
namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;  // in CUDA's words
};

#define ERROR_TEXT(error, text) {error, #error, text}
constexpr ErrorText kErrorTexts[] = {
    ERROR_TEXT(cudaSuccess, "no error"),
    ERROR_TEXT(cudaErrorInvalidValue, "invalid argument"),
    ERROR_TEXT(cudaErrorMemoryAllocation, "out of memory"),
    ERROR_TEXT(cudaErrorInitializationError, "initialization error"),
    ERROR_TEXT(cudaErrorCudartUnloading, "driver shutting down"),
    ERROR_TEXT(cudaErrorProfilerDisabled, "profiler disabled while using external profiling tool"),
    ERROR_TEXT(cudaErrorProfilerNotInitialized, "profiler not initialized: call cudaProfilerInitialize()"),
    ERROR_TEXT(cudaErrorProfilerAlreadyStarted, "profiler already started"),
    ERROR_TEXT(cudaErrorProfilerAlreadyStopped, "profiler already stopped"),
    ERROR_TEXT(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR_TEXT(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    ERROR_TEXT(cudaErrorInvalidSymbol, "invalid device symbol"),
    ERROR_TEXT(cudaErrorInvalidHostPointer, "invalid host pointer"),
    ERROR_TEXT(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    ERROR_TEXT(cudaErrorInvalidTexture, "invalid texture reference"),
    ERROR_TEXT(cudaErrorInvalidTextureBinding, "texture is not bound to a pointer"),
    ERROR_TEXT(cudaErrorInvalidChannelDescriptor, "invalid channel descriptor"),
    ERROR_TEXT(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR_TEXT(cudaErrorAddressOfConstant, "invalid address of constant"),
    ERROR_TEXT(cudaErrorTextureFetchFailed, "fetch from texture failed"),
    ERROR_TEXT(cudaErrorTextureNotBound, "cannot fetch from a texture that is not bound"),
    ERROR_TEXT(cudaErrorSynchronizationError, "incorrect use of __syncthreads()"),
    ERROR_TEXT(cudaErrorInvalidFilterSetting, "linear filtering not supported for non-float type"),
    ERROR_TEXT(cudaErrorInvalidNormSetting, "read as normalized float not supported for data type"),
    ERROR_TEXT(cudaErrorMixedDeviceExecution, "device emulation mode and device execution mode cannot be mixed"),
    ERROR_TEXT(cudaErrorNotYetImplemented, "feature not yet implemented"),
    ERROR_TEXT(cudaErrorMemoryValueTooLarge, "memory size or pointer value too large to fit in 32 bit"),
    ERROR_TEXT(cudaErrorStubLibrary, "CUDA driver is a stub library"),
    ERROR_TEXT(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    ERROR_TEXT(cudaErrorCallRequiresNewerDriver, "API call is not supported in the installed CUDA driver"),
    ERROR_TEXT(cudaErrorInvalidSurface, "invalid surface reference"),
    ERROR_TEXT(cudaErrorDuplicateVariableName, "duplicate global variable looked up by string name"),
    ERROR_TEXT(cudaErrorDuplicateTextureName, "duplicate texture looked up by string name"),
    ERROR_TEXT(cudaErrorDuplicateSurfaceName, "duplicate surface looked up by string name"),
    ERROR_TEXT(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"),
    ERROR_TEXT(cudaErrorIncompatibleDriverContext, "incompatible driver context"),
    ERROR_TEXT(cudaErrorMissingConfiguration, "__global__ function call is not configured"),
    ERROR_TEXT(cudaErrorPriorLaunchFailure, "unspecified launch failure in prior launch"),
    ERROR_TEXT(cudaErrorLaunchMaxDepthExceeded, "launch would exceed maximum depth of nested launches"),
    ERROR_TEXT(cudaErrorLaunchFileScopedTex,
               "launch failed because kernel uses unsupported, file-scoped textures (texture objects are supported)"),
    ERROR_TEXT(cudaErrorLaunchFileScopedSurf,
               "launch failed because kernel uses unsupported, file-scoped surfaces (surface objects are supported)"),
    ERROR_TEXT(cudaErrorSyncDepthExceeded,
               "cudaDeviceSynchronize failed because caller's grid depth exceeds cudaLimitDevRuntimeSyncDepth"),
    ERROR_TEXT(cudaErrorLaunchPendingCountExceeded,
               "launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount"),
    ERROR_TEXT(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR_TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR_TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR_TEXT(cudaErrorDeviceNotLicensed, "device doesn't have valid Grid license"),
    ERROR_TEXT(cudaErrorSoftwareValidityNotEstablished, "integrity checks failed"),
    ERROR_TEXT(cudaErrorStartupFailure, "startup failure in cuda runtime"),
    ERROR_TEXT(cudaErrorInvalidKernelImage, "device kernel image is invalid"),
    ERROR_TEXT(cudaErrorDeviceUninitialized, "invalid device context"),
    ERROR_TEXT(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"),
    ERROR_TEXT(cudaErrorUnmapBufferObjectFailed, "unmapping of buffer object failed"),
    ERROR_TEXT(cudaErrorArrayIsMapped, "array is mapped"),
    ERROR_TEXT(cudaErrorAlreadyMapped, "resource already mapped"),
    ERROR_TEXT(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    ERROR_TEXT(cudaErrorAlreadyAcquired, "resource already acquired"),
    ERROR_TEXT(cudaErrorNotMapped, "resource not mapped"),
    ERROR_TEXT(cudaErrorNotMappedAsArray, "resource not mapped as array"),
    ERROR_TEXT(cudaErrorNotMappedAsPointer, "resource not mapped as pointer"),
    ERROR_TEXT(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    ERROR_TEXT(cudaErrorUnsupportedLimit, "limit is not supported on this architecture"),
    ERROR_TEXT(cudaErrorDeviceAlreadyInUse, "exclusive-thread device already in use by a different thread"),
    ERROR_TEXT(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    ERROR_TEXT(cudaErrorInvalidPtx, "a PTX JIT compilation failed"),
    ERROR_TEXT(cudaErrorInvalidGraphicsContext, "invalid OpenGL or DirectX context"),
    ERROR_TEXT(cudaErrorNvlinkUncorrectable, "uncorrectable NVLink error detected during the execution"),
    ERROR_TEXT(cudaErrorJitCompilerNotFound, "PTX JIT compiler library not found"),
    ERROR_TEXT(cudaErrorUnsupportedPtxVersion, "the provided PTX was compiled with an unsupported toolchain."),
    ERROR_TEXT(cudaErrorJitCompilationDisabled, "PTX JIT compilation was disabled"),
    ERROR_TEXT(cudaErrorUnsupportedExecAffinity, "the provided execution affinity is not supported"),
    ERROR_TEXT(cudaErrorUnsupportedDevSideSync, "the provided PTX contains unsupported call to cudaDeviceSynchronize"),
    ERROR_TEXT(cudaErrorInvalidSource, "device kernel image is invalid"),
    ERROR_TEXT(cudaErrorFileNotFound, "file not found"),
    ERROR_TEXT(cudaErrorSharedObjectSymbolNotFound, "shared object symbol not found"),
    ERROR_TEXT(cudaErrorSharedObjectInitFailed, "shared object initialization failed"),
    ERROR_TEXT(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS"),
    ERROR_TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR_TEXT(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR_TEXT(cudaErrorLossyQuery, "attempted introspection would be semantically lossy"),
    ERROR_TEXT(cudaErrorSymbolNotFound, "named symbol not found"),
    ERROR_TEXT(cudaErrorNotReady, "device not ready"),
    ERROR_TEXT(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR_TEXT(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR_TEXT(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    ERROR_TEXT(cudaErrorLaunchIncompatibleTexturing, "launch uses incompatible texturing mode"),
    ERROR_TEXT(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    ERROR_TEXT(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    ERROR_TEXT(cudaErrorSetOnActiveProcess, "cannot set while device is active in this process"),
    ERROR_TEXT(cudaErrorContextIsDestroyed, "context is destroyed"),
    ERROR_TEXT(cudaErrorAssert, "device-side assert triggered"),
    ERROR_TEXT(cudaErrorTooManyPeers, "peer mapping resources exhausted"),
    ERROR_TEXT(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    ERROR_TEXT(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    ERROR_TEXT(cudaErrorHardwareStackError, "hardware stack error"),
    ERROR_TEXT(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    ERROR_TEXT(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR_TEXT(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"),
    ERROR_TEXT(cudaErrorInvalidPc, "invalid program counter"),
    ERROR_TEXT(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR_TEXT(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    ERROR_TEXT(cudaErrorNotPermitted, "operation not permitted"),
    ERROR_TEXT(cudaErrorNotSupported, "operation not supported"),
    ERROR_TEXT(cudaErrorSystemNotReady, "system not yet initialized"),
    ERROR_TEXT(cudaErrorSystemDriverMismatch, "system has unsupported display driver / cuda driver combination"),
    ERROR_TEXT(cudaErrorCompatNotSupportedOnDevice, "forward compatibility was attempted on non supported HW"),
    ERROR_TEXT(cudaErrorMpsConnectionFailed,
               "MPS client failed to connect to the MPS control daemon or the MPS server"),
    ERROR_TEXT(cudaErrorMpsRpcFailure, "the remote procedural call between the MPS server and the MPS client failed"),
    ERROR_TEXT(cudaErrorMpsServerNotReady, "MPS server is not ready to accept new MPS client requests"),
    ERROR_TEXT(cudaErrorMpsMaxClientsReached,
               "the hardware resources required to create MPS client have been exhausted"),
    ERROR_TEXT(cudaErrorMpsMaxConnectionsReached,
               "the hardware resources required to support device connections have been exhausted"),
    ERROR_TEXT(cudaErrorMpsClientTerminated, "the MPS client has been terminated by the server"),
    ERROR_TEXT(cudaErrorCdpNotSupported,
               "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it"),
    ERROR_TEXT(cudaErrorCdpVersionMismatch,
               "unsupported interaction between different versions of CUDA Dynamic Parallelism"),
    ERROR_TEXT(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR_TEXT(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    ERROR_TEXT(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    ERROR_TEXT(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    ERROR_TEXT(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR_TEXT(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    ERROR_TEXT(cudaErrorStreamCaptureImplicit,
               "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR_TEXT(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    ERROR_TEXT(cudaErrorStreamCaptureWrongThread,
               "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR_TEXT(cudaErrorTimeout, "wait operation timed out"),
    ERROR_TEXT(
        cudaErrorGraphExecUpdateFailure,
        "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"),
    ERROR_TEXT(cudaErrorExternalDevice, "an async error has occured in external entity outside of CUDA"),
    ERROR_TEXT(cudaErrorInvalidClusterSize, "a kernel launch error has occurred due to cluster misconfiguration"),
    ERROR_TEXT(cudaErrorUnknown, "unknown error"),
#if CUDART_VERSION >= 13000
    ERROR_TEXT(cudaErrorContained, "Invalid access of peer GPU memory over nvlink or a hardware error"),
    ERROR_TEXT(cudaErrorTensorMemoryLeak, "tensor memory not completely freed"),
    ERROR_TEXT(cudaErrorFunctionNotLoaded,
               "the function handle is not loaded when calling an API that requires a loaded function"),
    ERROR_TEXT(cudaErrorInvalidResourceType,
               "one or more resources passed in are not valid resource types for the operation"),
    ERROR_TEXT(cudaErrorInvalidResourceConfiguration,
               "one or more resources are insufficient or non-applicable for the operation"),
#endif
};
#undef ERROR_TEXT

/// Null for a code that does not exist in CUDA.
const ErrorText* find(cudaError_t error) {
  const auto* entry = std::find_if(std::begin(kErrorTexts), std::end(kErrorTexts),
                                   [&](const ErrorText& candidate) { return candidate.error == error; });
  return entry == std::end(kErrorTexts) ? nullptr : entry;
}

}  // namespace
}  // namespace flash_ladder::emulator::runtime

using namespace flash_ladder::emulator::runtime;  // C functions are in no namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* entry = find(error);
  return entry == nullptr ? "unrecognized error code" : entry->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* entry = find(error);
  return entry == nullptr ? "unrecognized error code" : entry->text;
}

cudaError_t cudaGetLastError() { return last_error(true); }

cudaError_t cudaPeekAtLastError() { return last_error(false); }

}  // extern "C"
