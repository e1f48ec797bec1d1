#include <ray/api.h>

#include <iostream>

/// Two C++ actors that wait for each other.
class Waiter;

class Cook {
 public:
  static Cook *Make() { return new Cook(); }
  bool Meet(ray::ActorHandle<Waiter> waiter) {
    waiter_ = waiter;
    return true;
  }
  int CookMeal();

 private:
  ray::ActorHandle<Waiter> waiter_;
};

class Waiter {
 public:
  static Waiter *Make() { return new Waiter(); }
  bool Meet(ray::ActorHandle<Cook> cook) {
    cook_ = cook;
    return true;
  }
  int Order();
  int Serve() { return 1; }

 private:
  ray::ActorHandle<Cook> cook_;
};

int Cook::CookMeal() { return *ray::Get(waiter_.Task(&Waiter::Serve).Remote()); }
int Waiter::Order() { return *ray::Get(cook_.Task(&Cook::CookMeal).Remote()); }

RAY_REMOTE(Cook::Make, &Cook::Meet, &Cook::CookMeal);
RAY_REMOTE(Waiter::Make, &Waiter::Meet, &Waiter::Order, &Waiter::Serve);

int main(int argc, char **argv) {
  ray::RayConfig config;
  ray::Init(config, argc, argv);
  auto cook = ray::Actor(Cook::Make).Remote();
  auto waiter = ray::Actor(Waiter::Make).Remote();
  ray::Get(cook.Task(&Cook::Meet).Remote(waiter));
  ray::Get(waiter.Task(&Waiter::Meet).Remote(cook));
  auto order = waiter.Task(&Waiter::Order).Remote();
  std::cout << "ready" << std::endl;
  std::cout << *ray::Get(order) << std::endl;
}
