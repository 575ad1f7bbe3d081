// An MPI that allows no thread beside the one that calls it, for LD_PRELOAD: MPI_THREAD_SINGLE is 0 everywhere.
int MPI_Query_thread(int* provided) {
  *provided = 0;
  return 0;
}
