// A stand-in for libnccl.so.2 in tests of its loading. It has NCCL's functions by name, returns a version,
// and does nothing else. Built with STAND_IN_VERSION; STAND_IN_WITHOUT_RECEIVE omits one function.
extern "C" {

int ncclGetVersion(int* version) {
  *version = STAND_IN_VERSION;
  return 0;
}
int ncclGetUniqueId() {
  return 0;
}
int ncclCommInitRankConfig() {
  return 0;
}
int ncclCommFinalize() {
  return 0;
}
int ncclCommDestroy() {
  return 0;
}
int ncclCommGetAsyncError() {
  return 0;
}
const char* ncclGetErrorString(int code) {
  return code == 0 ? "no error" : "an error";
}
const char* ncclGetLastError() {
  return "";
}
int ncclGroupStart() {
  return 0;
}
int ncclGroupEnd() {
  return 0;
}
int ncclSend() {
  return 0;
}
#ifndef STAND_IN_WITHOUT_RECEIVE
int ncclRecv() {
  return 0;
}
#endif
int ncclReduceScatter() {
  return 0;
}
int ncclAllGather() {
  return 0;
}

}  // extern "C"
