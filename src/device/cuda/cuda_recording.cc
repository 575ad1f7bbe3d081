// Recordings are CUDA graphs, made by capturing a stream.
#include "octet/device/device.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/device/cuda.h"

namespace octet::cuda {

std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& enqueue);

namespace {

class CudaRecording final : public Recording {
 public:
  CudaRecording(Stream& stream, cudaGraphExec_t graph) : stream_(stream), graph_(graph) {}
  ~CudaRecording() override { cudaGraphExecDestroy(graph_); }
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;
  void replay() override { check(cudaGraphLaunch(graph_, native(stream_)), "replaying recorded work"); }

 private:
  Stream& stream_;
  cudaGraphExec_t graph_;
};

/// Logs why nothing was recorded, clears the error and returns null.
std::unique_ptr<Recording> nothing(const std::string& why) {
  cudaGetLastError();
  log::debug("work on the GPU is not recorded: " + why);
  return nullptr;
}

}  // namespace

std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& enqueue) {
  // Relaxed: preparatory calls of this thread and of other threads, on other streams, may run during the
  // capture.
  const cudaError_t begun = cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeRelaxed);
  if (begun != cudaSuccess) return nothing(cudaGetErrorString(begun));
  std::string failed;
  try {
    enqueue();
  } catch (const Error& error) {
    failed = error.what();
  } catch (...) {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(native(stream), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(native(stream), &graph);
  if (ended == cudaSuccess && failed.empty() && graph != nullptr) {
    cudaGraphExec_t executable = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    if (made != cudaSuccess) return nothing(cudaGetErrorString(made));
    return std::make_unique<CudaRecording>(stream, executable);
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  return nothing(failed.empty() ? cudaGetErrorString(ended) : failed);
}

}  // namespace octet::cuda
