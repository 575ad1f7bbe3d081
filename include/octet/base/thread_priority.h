// How much of a core a thread gets beside others.
#pragma once

namespace octet {

/// The niceness (setpriority(2)) of threads whose work may take longer: a tenth of a core that a thread of
/// niceness 0 wants as well, and all of one that nobody wants.
inline constexpr int kBehindNiceness = 10;

/// From now on this thread gets a core when the threads that compute leave one, and so do threads that it
/// starts. It stays so: a thread must not raise itself again. Nothing happens where the system refuses.
void run_thread_behind();

}  // namespace octet
