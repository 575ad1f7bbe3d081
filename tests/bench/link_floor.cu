// The floor of an exchange between two processes of one host: each copies into the other's GPU memory (CUDA
// IPC) and tells it by a value that the other's stream waits for, so that no host takes part between two
// exchanges. One round is what two ranks need at least to swap a slice.
//
//   link_floor [--same-gpu] [--mib 1,64,1024] [--rounds 20]
//
// --same-gpu puts both processes on GPU 0, which tries the code without a link. Prints a row a size:
// microseconds a round and GB/s that each side sends. Contents are checked at the end of each size. Exits 1
// when they are wrong, 77 without GPUs.
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Options {
  bool same_gpu = false;
  std::vector<std::size_t> bytes = {std::size_t{1} << 10, std::size_t{1} << 20, std::size_t{64} << 20,
                                    std::size_t{1} << 30};
  int rounds = 20;
};

int rank = 0;  // 0 is the parent

[[noreturn]] void fail(const char* what, const std::string& reason, int code = 1) {
  std::fprintf(stderr, "link_floor: process %d: %s: %s\n", rank, what, reason.c_str());
  std::fflush(stderr);
  _exit(code);
}

void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) fail(what, cudaGetErrorString(code));
}

[[noreturn]] void usage() {
  std::fprintf(stderr, "usage: link_floor [--same-gpu] [--mib 1,64,1024] [--rounds 20]\n");
  std::exit(2);
}

/// A whole number of at least one, else the usage.
long number(const char* text, long most) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || (*end != 0 && *end != ',') || value < 1 || value > most) usage();
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--same-gpu") {
      options.same_gpu = true;
    } else if (name == "--mib" && i + 1 < argc) {
      options.bytes.clear();
      for (const char* at = argv[++i];; ++at) {
        options.bytes.push_back(static_cast<std::size_t>(number(at, 16384)) << 20);
        at = std::strchr(at, ',');
        if (at == nullptr) break;
      }
    } else if (name == "--rounds" && i + 1 < argc) {
      options.rounds = static_cast<int>(number(argv[++i], 100000));
    } else {
      usage();
    }
  }
  return options;
}

/// Bytes between the two processes: what each has to tell the other before and after the copies.
struct Pipes {
  int in = -1, out = -1;
  template <typename T>
  T swap(const T& mine) const {
    if (write(out, &mine, sizeof(T)) != static_cast<ssize_t>(sizeof(T)))
      fail("telling the other process", "it is gone");
    T theirs;
    auto* to = reinterpret_cast<char*>(&theirs);
    for (std::size_t got = 0; got < sizeof(T);) {
      const ssize_t n = read(in, to + got, sizeof(T) - got);
      if (n <= 0) fail("hearing from the other process", "it is gone");
      got += static_cast<std::size_t>(n);
    }
    return theirs;
  }
};

using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

/// A function of the driver, which is not linked.
template <typename Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result), name);
  if (found == nullptr || result != cudaDriverEntryPointSuccess)
    fail(name, "the driver has no such function");
  return reinterpret_cast<Function>(found);
}

void require(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS) fail(what, "the driver's error " + std::to_string(static_cast<int>(code)));
}

/// Memory of this process that the other one opens.
struct Shared {
  char* slice = nullptr;       ///< the other process copies here
  cuuint32_t* told = nullptr;  ///< and writes its round here
};
struct Handles {
  cudaIpcMemHandle_t slice, told;
};

class Exchange {
 public:
  Exchange(const Pipes& pipes, std::size_t most) : pipes_(pipes) {
    check(cudaMalloc(&mine_.slice, most), "memory for what comes");
    check(cudaMalloc(&from_, most), "memory for what is sent");
    check(cudaMalloc(&mine_.told, 4096), "memory for a value");
    check(cudaMemset(mine_.told, 0, 4096), "clearing the value");
    check(cudaDeviceSynchronize(), "clearing the value");
    Handles handles;
    check(cudaIpcGetMemHandle(&handles.slice, mine_.slice), "a handle of memory");
    check(cudaIpcGetMemHandle(&handles.told, mine_.told), "a handle of the value");
    const Handles theirs = pipes_.swap(handles);
    void* opened = nullptr;
    check(cudaIpcOpenMemHandle(&opened, theirs.slice, cudaIpcMemLazyEnablePeerAccess), "the other's memory");
    theirs_.slice = static_cast<char*>(opened);
    check(cudaIpcOpenMemHandle(&opened, theirs.told, cudaIpcMemLazyEnablePeerAccess), "the other's value");
    theirs_.told = static_cast<cuuint32_t*>(opened);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }

  /// Seconds of one round of `bytes` each way.
  double seconds(std::size_t bytes, int rounds) {
    mark_ = static_cast<unsigned char>(mark_ + 2);
    check(cudaMemset(from_, mark_ + rank, bytes), "filling what is sent");
    check(cudaDeviceSynchronize(), "filling what is sent");
    pipes_.swap(0);
    for (int i = 0; i < 3; ++i) enqueue(bytes);
    check(cudaStreamSynchronize(stream_), "copies");
    pipes_.swap(0);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) enqueue(bytes);
    check(cudaStreamSynchronize(stream_), "copies");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / rounds;
  }

  /// Whether the other's bytes are all here.
  bool whole(std::size_t bytes) const {
    std::vector<unsigned char> got(bytes);
    check(cudaMemcpy(got.data(), mine_.slice, bytes, cudaMemcpyDeviceToHost), "reading what came");
    for (const unsigned char byte : got) {
      if (byte != static_cast<unsigned char>(mark_ + 1 - rank)) return false;
    }
    return true;
  }

 private:
  /// A copy there, word of it, and the other's word awaited.
  void enqueue(std::size_t bytes) {
    check(cudaMemcpyAsync(theirs_.slice, from_, bytes, cudaMemcpyDeviceToDevice, stream_), "a copy");
    ++round_;
    require(write_(stream_, reinterpret_cast<CUdeviceptr>(theirs_.told), round_, 0), "writing a value");
    require(wait_(stream_, reinterpret_cast<CUdeviceptr>(mine_.told), round_, CU_STREAM_WAIT_VALUE_GEQ),
            "waiting for a value");
  }

  Pipes pipes_;
  Shared mine_, theirs_;
  char* from_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cuuint32_t round_ = 0;
  unsigned char mark_ = 1;
  WriteValue write_ = driver_function<WriteValue>("cuStreamWriteValue32");
  WaitValue wait_ = driver_function<WaitValue>("cuStreamWaitValue32");
};

int run(const Options& options, const Pipes& pipes) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  const int wanted = options.same_gpu ? 1 : 2;
  if (code != cudaSuccess || count < wanted) {
    if (rank == 0) {
      std::fprintf(stderr, "link_floor: nothing was measured: %d GPUs are wanted, the driver shows %d%s%s\n",
                   wanted, code == cudaSuccess ? count : 0, code == cudaSuccess ? "" : ": ",
                   code == cudaSuccess ? "" : cudaGetErrorString(code));
    }
    return 77;
  }
  const int gpu = options.same_gpu ? 0 : rank;
  check(cudaSetDevice(gpu), "choosing a GPU");
  if (!options.same_gpu) {
    int reaches = 0;
    check(cudaDeviceCanAccessPeer(&reaches, gpu, 1 - gpu), "asking for peer access");
    if (reaches == 0) fail("GPUs 0 and 1", "they do not reach each other's memory");
  }
  std::size_t most = 0;
  for (const std::size_t bytes : options.bytes) most = std::max(most, bytes);
  Exchange exchange(pipes, most);
  bool right = true;
  if (rank == 0) std::printf("%12s %14s %16s\n", "bytes", "microseconds", "GB/s each way");
  for (const std::size_t bytes : options.bytes) {
    // Short ones last too little for a clock to see.
    const double seconds =
        exchange.seconds(bytes, bytes < (std::size_t{2} << 20) ? 10 * options.rounds : options.rounds);
    const bool here = exchange.whole(bytes), there = pipes.swap(here);
    right = right && here && there;
    if (rank == 0) {
      std::printf("%12zu %14.1f %16.1f%s\n", bytes, seconds * 1e6, static_cast<double>(bytes) / seconds / 1e9,
                  here && there ? "" : "   CONTENTS ARE WRONG");
      std::fflush(stdout);
    }
  }
  pipes.swap(0);  // memory stays until the other is done with it
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  int up[2], down[2];
  if (pipe(up) != 0 || pipe(down) != 0) fail("making pipes", std::strerror(errno));
  // Before the first CUDA call, because the state of CUDA does not survive a fork.
  const pid_t child = fork();
  if (child < 0) fail("starting the second process", std::strerror(errno));
  rank = child == 0 ? 1 : 0;
  close(rank == 0 ? up[1] : down[1]);
  close(rank == 0 ? down[0] : up[0]);
  const int code = run(options, rank == 0 ? Pipes{up[0], down[1]} : Pipes{down[0], up[1]});
  if (rank == 1) _exit(code);
  int status = 0;
  waitpid(child, &status, 0);
  return code != 0 ? code : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
